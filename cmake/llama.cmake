# llama.cpp and ggml, built once by tools/setup_llama.sh and imported here as precis::llama; and
# llama-common's Jinja engine, compiled from its source as precis::jinja.
# Where they lie: PRECIS_LLAMA_PREFIX; or PRECIS_LLAMA_DIR, prepared now; or what `make setup` wrote
# to build/llama_prefix (line 1: the prefix, line 2: the sources of llama-common).
set(setup_file ${CMAKE_SOURCE_DIR}/build/llama_prefix)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${setup_file})
set(found "")
if(PRECIS_LLAMA_PREFIX)
  set(found ${PRECIS_LLAMA_PREFIX})
elseif(PRECIS_LLAMA_DIR)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env PRECIS_LLAMA_DIR=${PRECIS_LLAMA_DIR}
            ${CMAKE_SOURCE_DIR}/tools/setup_llama.sh
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
elseif(DEFINED ENV{PRECIS_LLAMA_PREFIX})
  set(found $ENV{PRECIS_LLAMA_PREFIX})
elseif(EXISTS ${setup_file})
  file(READ ${setup_file} found)
  string(STRIP "${found}" found)
endif()
string(REPLACE "\n" ";" found "${found}")
list(LENGTH found lines)
if(lines EQUAL 2)
  list(GET found 0 llama_prefix)
  list(GET found 1 llama_common)
else()
  set(llama_prefix ${found})
  set(llama_common ${found}/share/llama-common)
endif()
if(NOT EXISTS "${llama_prefix}/include/llama.h")
  message(FATAL_ERROR "No llama.cpp in '${llama_prefix}'. Run 'make setup' first.")
endif()
message(STATUS "llama.cpp: ${llama_prefix}")

# ggml-cpu is a library only in installs without loadable backends; in ours the CPU backends are
# modules that are loaded at run time.
add_library(precis_llama INTERFACE)
add_library(precis::llama ALIAS precis_llama)
target_include_directories(precis_llama SYSTEM INTERFACE ${llama_prefix}/include)
foreach(lib llama ggml ggml-cpu ggml-base)
  unset(path)
  find_library(path ${lib} NO_CACHE NO_DEFAULT_PATH
    PATHS ${llama_prefix}/lib ${llama_prefix}/lib64 ${llama_prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  if(path MATCHES "\\.a$")
    message(FATAL_ERROR "${path} is static; Precis needs llama.cpp as shared libraries")
  elseif(path)
    target_link_libraries(precis_llama INTERFACE ${path})
    get_filename_component(llama_libdir ${path} DIRECTORY)
  elseif(NOT lib STREQUAL "ggml-cpu")
    message(FATAL_ERROR "No library '${lib}' in ${llama_prefix}/lib")
  endif()
endforeach()
target_link_libraries(precis_llama INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
# The old kind of run path also serves the libraries' own dependencies: an install of llama.cpp need
# not have paths of its own.
target_link_options(precis_llama INTERFACE -Wl,--disable-new-dtags)

file(GLOB llama_backends ${llama_prefix}/bin/libggml-*.so ${llama_libdir}/libggml-cpu-*.so)
set(llama_backend_dir "")
if(llama_backends)
  list(GET llama_backends 0 path)
  get_filename_component(llama_backend_dir ${path} DIRECTORY)
endif()
file(GLOB llama_shared ${llama_libdir}/libllama.so* ${llama_libdir}/libggml*.so*)

file(GLOB jinja_sources ${llama_common}/common/jinja/*.cpp)
add_library(precis_jinja STATIC ${jinja_sources} ${llama_common}/common/json.cpp
                                ${llama_common}/common/unicode.cpp)
add_library(precis::jinja ALIAS precis_jinja)
target_include_directories(precis_jinja SYSTEM PUBLIC ${llama_common}/common ${llama_common}/vendor)
target_compile_options(precis_jinja PRIVATE -w)
target_link_libraries(precis_jinja PRIVATE precis_llama)

# Headers that llama.cpp vendors and Precis uses too (nlohmann/json.hpp).
add_library(precis_vendor INTERFACE)
add_library(precis::vendor ALIAS precis_vendor)
target_include_directories(precis_vendor SYSTEM INTERFACE ${llama_common}/vendor)

# SHA-256, vendored by llama.cpp too.
add_library(precis_hash STATIC ${llama_common}/vendor/hash/sha256/sha256.c)
target_include_directories(precis_hash SYSTEM PUBLIC ${llama_common}/vendor PRIVATE ${llama_common}/vendor/hash)
target_compile_options(precis_hash PRIVATE -w)
