// Which instruction sets the kernels are compiled for. Include before any header of Highway, in
// every file that dispatches or that lists the targets, so that all agree.
//
// Vectors of unknown size cannot be elements of an array, which is how the kernels hold their
// accumulators. Arm machines with SVE therefore run the NEON code, whose registers are as wide on
// all cores sold for servers except one.
//
// SSSE3 and AVX3_DL (Ice Lake's extensions) offer these f32 kernels nothing over SSE2 and AVX3, and each
// target costs half a minute of compiling.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX3_DL)
