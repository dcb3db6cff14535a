/* Hashes: libcrypto and xxhash do the work. CRC-32C uses a table of sixteen entries, which is fast enough for
 * TensorBoard's small records.
 *
 * libcrypto's results are CHECKed: the digest always exists in the library, and small allocations never fail
 * (base/text.h), so an error there is a bug. */
#include "base/hash.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/text.h"

struct Sha256 {
    EVP_MD_CTX *context;
};

/* Must be followed by sha256_finish, which frees it. */
Sha256 *sha256_start(void) {
    Sha256 *h = mem_alloc(sizeof *h);
    h->context = EVP_MD_CTX_new();
    CHECK(h->context != NULL);
    CHECK(EVP_DigestInit_ex(h->context, EVP_sha256(), NULL) == 1);
    return h;
}

/* The digest depends on the bytes only, not on how they are divided into calls: to hash several strings, add
 * their lengths too. */
void sha256_add(Sha256 *h, const void *data, size_t length) {
    CHECK(EVP_DigestUpdate(h->context, data, length) == 1);
}

/* Little-endian on every machine, so that digests of numbers are the same everywhere. */
void sha256_add_u64(Sha256 *h, uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> (8 * i));
    sha256_add(h, bytes, sizeof bytes);
}

void sha256_finish(Sha256 *h, uint8_t out[32]) {
    unsigned length = 0;
    CHECK(EVP_DigestFinal_ex(h->context, out, &length) == 1 && length == 32);
    EVP_MD_CTX_free(h->context);
    free(h);
}

void sha256_next(Sha256 *h, uint8_t out[32]) {
    unsigned length = 0;
    CHECK(EVP_DigestFinal_ex(h->context, out, &length) == 1 && length == 32);
    CHECK(EVP_DigestInit_ex(h->context, NULL, NULL) == 1); /* NULL: as before */
}

/* Lower case, as sha256sum prints it: a user can compare the two. */
void sha256_hex(const uint8_t digest[32], char out[65]) { hex_of(digest, 32, out); }

void sha256_of(const void *data, size_t length, char out[65]) {
    uint8_t digest[32];
    Sha256 *h = sha256_start();
    sha256_add(h, data, length);
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

void hex_of(const uint8_t *bytes, size_t count, char *out) {
    for (size_t i = 0; i < count; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

bool hex_is(const char *text, size_t digits) {
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

/* XXH3, 64 bits: checksums of data in transit, fingerprints, seeds from names. Not collision-resistant: use
 * SHA-256 against adversaries. */
uint64_t hash64(const void *data, size_t length) { return XXH3_64bits(data, length); }

/* The same of 128 bits, for telling apart more things than 64 bits can. */
void hash128(const void *data, size_t length, uint8_t out[16]) {
    XXH128_hash_t hash = XXH3_128bits(data, length);
    memcpy(out, &hash, 16);
}

struct Hash128 {
    XXH3_state_t *state;
};

Hash128 *hash128_open(void) {
    Hash128 *h = mem_alloc(sizeof *h);
    h->state = XXH3_createState();
    CHECK(h->state != NULL);
    return h;
}

void hash128_begin(Hash128 *h) { CHECK(XXH3_128bits_reset(h->state) == XXH_OK); }

void hash128_add(Hash128 *h, const void *data, size_t length) {
    CHECK(XXH3_128bits_update(h->state, data, length) == XXH_OK);
}

void hash128_finish(const Hash128 *h, uint8_t out[16]) {
    XXH128_hash_t hash = XXH3_128bits_digest(h->state);
    memcpy(out, &hash, 16);
}

void hash128_close(Hash128 *h) {
    if (!h) return;
    XXH3_freeState(h->state);
    free(h);
}

/* The Castagnoli polynomial, used in the framing of TensorBoard records. A byte is processed as two nibbles,
 * the lower one first, since the register is reflected. */
uint32_t crc32c(const void *data, size_t length) {
    /* Remainders of the sixteen nibbles for the reflected polynomial 0x82f63b78. */
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *bytes = data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}
