# Options and compiler flags shared by every target of Precis.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

option(PRECIS_TESTS "Build the tests" ON)
set(PRECIS_SANITIZE "" CACHE STRING "Sanitizers for Precis' own code, e.g. address,undefined")
set(PRECIS_LLAMA_PREFIX "" CACHE PATH "Installed llama.cpp (made by tools/setup_llama.sh)")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(precis_warnings INTERFACE)
target_compile_options(precis_warnings INTERFACE -Wall -Wextra -Wconversion -Werror)

if(PRECIS_SANITIZE)
  add_compile_options(-fsanitize=${PRECIS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PRECIS_SANITIZE})
endif()
