/* The C interface of Precis. Conventions:
 *
 * 1. Objects are opaque handles. What a function named *_new or *_open returns is the caller's, who
 *    gives it back with the matching *_free; NULL may be freed.
 * 2. Text is UTF-8 and passed as pointer and length; it need not end in a zero byte. Text returned
 *    as `const char*` ends in a zero byte and belongs to the library; when a function says so, the
 *    caller frees it with precis_free.
 * 3. A function that can fail has a last argument `char** error`. On failure it returns NULL or a
 *    negative number and, if `error` is not NULL, sets *error to a one-line message to be freed
 *    with precis_free; on success it leaves *error alone. No C++ exception ever leaves the library.
 * 4. Sizes are size_t, token ids and positions int32_t, and structs that will grow start with their
 *    own size.
 * 5. Pointers must not be NULL unless their comment allows it.
 * 6. An engine may be used by many threads at once; a session by one thread at a time.
 * 7. Nothing is printed. Names begin with precis_ or PRECIS_, and what is declared here is all that
 *    the library exports.
 *
 * Conventions 1 to 6 bind the functions to come; so far there is only the version.
 */
#ifndef PRECIS_H_
#define PRECIS_H_

#if defined(PRECIS_BUILD)
#define PRECIS_API __attribute__((visibility("default")))
#else
#define PRECIS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library, e.g. "0.1.0"; never freed. */
PRECIS_API const char* precis_version(void);

#ifdef __cplusplus
}
#endif

#endif /* PRECIS_H_ */
