# What is shipped: the binary `precis`, the C library libprecis, and how both are installed.
find_package(CLI11 REQUIRED)
file(GLOB app_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/app/*.cpp)
add_executable(precis ${app_sources})
precis_own(precis)
target_link_libraries(precis PRIVATE precis_eval precis_store precis_methods CLI11::CLI11 precis::vendor)
target_compile_definitions(precis PRIVATE PRECIS_VERSION="${PROJECT_VERSION}")
# Benchmarks say which commit they measured.
set(commit_header ${CMAKE_BINARY_DIR}/generated/app/build_commit.h)
add_custom_target(precis_commit BYPRODUCTS ${commit_header}
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUTPUT=${commit_header}
          -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake)
add_dependencies(precis precis_commit)
target_include_directories(precis PRIVATE ${CMAKE_BINARY_DIR}/generated)

file(GLOB capi_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/capi/*.cpp)
add_library(precis_shared SHARED ${capi_sources})
precis_own(precis_shared)
target_link_libraries(precis_shared PRIVATE precis_engine precis_methods)
target_include_directories(precis_shared PUBLIC ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(precis_shared PRIVATE PRECIS_VERSION="${PROJECT_VERSION}" PRECIS_BUILD)
# Only what include/precis.h declares is visible.
set(exports ${CMAKE_SOURCE_DIR}/src/capi/exports.map)
target_link_options(precis_shared PRIVATE -Wl,--version-script=${exports})
set_target_properties(precis_shared PROPERTIES OUTPUT_NAME precis LINK_DEPENDS ${exports}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

# An installed tree: bin/precis, lib/libprecis.so, include/precis.h, and in lib/precis everything
# that is not part of a bare Debian. All paths in it are relative, so that it can be moved.
set_target_properties(precis PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/precis")
set_target_properties(precis_shared PROPERTIES INSTALL_RPATH "$ORIGIN/precis")
install(TARGETS precis precis_shared)
install(FILES include/precis.h TYPE INCLUDE)
pkg_get_variable(hwy_libdir libhwy libdir)
file(GLOB hwy_shared ${hwy_libdir}/libhwy.so.*)
install(FILES ${llama_shared} ${llama_backends} ${hwy_shared}
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/precis)
