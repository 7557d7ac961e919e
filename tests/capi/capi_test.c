/* The C interface, used from C. */
#include <stdio.h>
#include <string.h>

#include "precis.h"

int main(void) {
  const char* version = precis_version();
  if (version == NULL || strcmp(version, EXPECTED_VERSION) != 0) {
    fprintf(stderr, "precis_version() is '%s', expected '%s'\n", version ? version : "NULL",
            EXPECTED_VERSION);
    return 1;
  }
  return 0;
}
