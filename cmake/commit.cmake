# Run at build time: writes OUTPUT with the commit that SOURCE is at, if that changed.
#   cmake -DSOURCE=<dir> -DOUTPUT=<file> -P commit.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=9 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result ERROR_QUIET)
if(NOT result EQUAL 0)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n#define PRECIS_COMMIT \"@commit@\"\n" @ONLY)
