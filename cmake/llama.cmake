# llama.cpp and ggml, built once by tools/setup_llama.sh and imported here as precis::llama; and
# llama-common's Jinja engine, compiled from its source as precis::jinja.
set(prefix ${PRECIS_LLAMA_PREFIX})
if(NOT EXISTS ${prefix}/include/llama.h)
  message(FATAL_ERROR "No llama.cpp in PRECIS_LLAMA_PREFIX='${prefix}'. Run 'make setup' first.")
endif()

add_library(precis_llama INTERFACE)
add_library(precis::llama ALIAS precis_llama)
target_include_directories(precis_llama SYSTEM INTERFACE ${prefix}/include)
foreach(lib llama ggml ggml-base)
  find_library(PRECIS_LIB_${lib} ${lib} PATHS ${prefix}/lib ${prefix}/lib64 NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(precis_llama INTERFACE ${PRECIS_LIB_${lib}})
endforeach()

set(common ${prefix}/share/llama-common)
file(GLOB jinja_sources ${common}/common/jinja/*.cpp)
add_library(precis_jinja STATIC ${jinja_sources} ${common}/common/json.cpp ${common}/common/unicode.cpp)
add_library(precis::jinja ALIAS precis_jinja)
target_include_directories(precis_jinja SYSTEM PUBLIC ${common}/common ${common}/vendor)
target_compile_options(precis_jinja PRIVATE -w)
target_link_libraries(precis_jinja PRIVATE precis_llama)
