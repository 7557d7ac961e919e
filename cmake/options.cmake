# Options and compiler flags shared by every target of Precis.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_INSTALL_LIBDIR lib CACHE PATH "Relative, so that an installed tree can be moved")

find_package(GTest QUIET)
option(PRECIS_TESTS "Build the tests (needs GoogleTest)" ${GTest_FOUND})
option(PRECIS_BENCH "Build the micro-benchmarks (needs Google Benchmark)" OFF)
option(PRECIS_TIDY "Run clang-tidy on the files of src while compiling them" OFF)
set(PRECIS_SANITIZE "" CACHE STRING "Sanitizers for Precis' own code, e.g. address,undefined")
set(PRECIS_LLAMA_PREFIX "" CACHE PATH "Installed llama.cpp; empty: what 'make setup' prepared")
set(PRECIS_LLAMA_DIR "" CACHE PATH "Own checkout or install of llama.cpp, prepared on configuring")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

if(PRECIS_SANITIZE)
  add_compile_options(-fsanitize=${PRECIS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PRECIS_SANITIZE})
endif()

if(PRECIS_TIDY)
  find_program(CLANG_TIDY_PROGRAM NAMES clang-tidy-14 clang-tidy REQUIRED)
endif()

# What every target made of our own files gets: strict warnings, and clang-tidy when asked for.
function(precis_own target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 sees an overlap in "text" + std::string (its bug 105651, mended in 13).
    target_compile_options(${target} PRIVATE -Wno-restrict)
    if(PRECIS_SANITIZE)
      # The checks that a sanitizer adds hide from GCC 12 what was assigned before: it finds
      # "maybe uninitialized" in the C++ library's own <regex> and <functional>. The release preset
      # compiles the same files with this warning on.
      target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
    endif()
  endif()
  if(PRECIS_TIDY)
    set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY
      "${CLANG_TIDY_PROGRAM};--quiet;--extra-arg=-Wno-unknown-warning-option")
  endif()
endfunction()

# What the tests' own sources get beside that. They are half of what is compiled: at -O1 a release
# test takes three fifths of the time to compile, and a checked one without UBSan as well, which
# judges the sources of src only. ASan sees both.
function(precis_own_test target)
  precis_own(${target})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(PRECIS_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()
