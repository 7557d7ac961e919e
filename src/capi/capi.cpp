#include "precis.h"

const char* precis_version(void) { return PRECIS_VERSION; }
