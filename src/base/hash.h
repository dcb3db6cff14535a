/* Hashes: SHA-256 for identities (libcrypto), XXH3 for checksums (xxhash), CRC-32C for TensorBoard
 * records. */
#ifndef WEFT_BASE_HASH_H
#define WEFT_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 Sha256;
Sha256 *sha256_start(void);
void sha256_add(Sha256 *h, const void *data, size_t length);
void sha256_add_u64(Sha256 *h, uint64_t value); /* eight bytes, little-endian */
void sha256_finish(Sha256 *h, uint8_t out[32]); /* also frees h */
void sha256_next(Sha256 *h, uint8_t out[32]);   /* instead of freeing it, starts the next digest */
void sha256_hex(const uint8_t digest[32], char out[65]);
void sha256_of(const void *data, size_t length, char out[65]); /* of one buffer, as sha256_hex */
/* Two digits for each byte, in lower case. */
void hex_of(const uint8_t *bytes, size_t count, char *out /* [2 * count + 1] */);
bool hex_is(const char *text, size_t digits); /* whether it is so many digits, in lower case, and no more */

uint64_t hash64(const void *data, size_t length); /* XXH3, seed 0 */
void hash128(const void *data, size_t length, uint8_t out[16]);
/* The same of data that comes in parts: hash128_begin, additions, hash128_finish; again and again. */
typedef struct Hash128 Hash128;
Hash128 *hash128_open(void);
void hash128_begin(Hash128 *h);
void hash128_add(Hash128 *h, const void *data, size_t length);
void hash128_finish(const Hash128 *h, uint8_t out[16]);
void hash128_close(Hash128 *h);                   /* NULL is fine */
uint32_t crc32c(const void *data, size_t length); /* Castagnoli, reflected; "123456789" -> 0xe3069283 */

#endif
