// Which instruction sets the kernels are compiled for. Include before any header of Highway, in
// every file that dispatches or that lists the targets, so that all agree.
//
// Vectors of unknown size cannot be elements of an array, which is how the kernels hold their
// accumulators. Arm machines with SVE therefore run the NEON code, whose registers are as wide on
// all cores sold for servers except one.
//
// AVX3_DL (Ice Lake's extensions) offers the f32 kernels nothing over AVX3; its products of bytes
// could shorten those of quantised rows (whole-inl.h), which was never tried. Processors with SSSE3
// but not SSE4 date from before 2009: they run the portable code. Each target costs half a minute
// of compiling.
//
// Sanitizers see two of them, the widest that most machines have and the portable one, whose
// vectors are as wide as SSE4's: with ASan and UBSan packed_attention.cpp alone took 280 s to
// compile for all. Release tests run every target that the processor has.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PRECIS_UNCHECKED_TARGETS (HWY_AVX3 | HWY_SSE4)
#else
#define PRECIS_UNCHECKED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                             \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX3_DL | \
   PRECIS_UNCHECKED_TARGETS)
