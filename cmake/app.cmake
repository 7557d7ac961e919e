# The precis binary.
find_package(CLI11 REQUIRED)
file(GLOB app_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/app/*.cpp)
add_executable(precis ${app_sources})
target_link_libraries(precis PRIVATE precis_engine precis_methods CLI11::CLI11 precis_warnings)
target_include_directories(precis SYSTEM PRIVATE ${PRECIS_LLAMA_PREFIX}/share/llama-common/vendor)
