/* The sum of squares of an upload: what it is clipped by, wherever that is measured. */
#ifndef TACIT_SUMS
#define TACIT_SUMS

float square_sum(const float *upload, long numbers);

#endif
