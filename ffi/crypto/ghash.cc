// Theory of operation. GCM writes the polynomials of GF(2^128) with their bits reversed. Bytes are
// reversed when they are loaded; that bits stay reversed within the whole makes each product of two
// lie one bit too low, which is made up for by keeping the powers of the point multiplied by x.
//
// A product has 255 bits, in three parts that overlap by 64 bits. The parts of up to 16 products,
// each of a block and the power for its place, are added before they are reduced together, by two
// multiplications with the field's polynomial (the method of Gueron and Kounaris).
//
// No branch and no address depends on data or on the secret.

#include "ffi/crypto/ghash.h"

#include <openssl/crypto.h>

#include <cstdint>
#include <cstring>

#include "ffi/base/check.h"

#if defined(__x86_64__) && defined(__GNUC__)
// GCC before 13 takes the undefined vectors of its own header for a mistake (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#define OR_HAS_WIDE_GHASH 1
#endif

namespace optireduce {

#if defined(OR_HAS_WIDE_GHASH)

namespace {

#define OR_WIDE [[gnu::target("avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul")]]

// 128-bit lanes of one register.
constexpr std::size_t kLanes = 4;
constexpr std::size_t kWideBytes = kLanes * kCipherBlockBytes;

// x^128 + x^127 + x^126 + x^121 + 1, reversed. Source: NIST SP 800-38D, 6.3.
constexpr long long kPolynomialHigh = static_cast<long long>(0xC200'0000'0000'0000ULL);

// The three parts of products that are not reduced yet.
struct Product {
  __m512i low;
  __m512i middle;
  __m512i high;
};

OR_WIDE inline __m512i Load(const std::byte* from) {
  const __m512i reversed =
      _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm512_shuffle_epi8(_mm512_loadu_si512(from), reversed);
}

OR_WIDE inline __m512i LoadBlock(const std::byte* from) {
  const __m128i reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m128i block;
  std::memcpy(&block, from, sizeof(block));
  return _mm512_zextsi128_si512(_mm_shuffle_epi8(block, reversed));
}

OR_WIDE inline Product Multiply(__m512i a, __m512i b) {
  return {.low = _mm512_clmulepi64_epi128(a, b, 0x00),
          .middle = _mm512_xor_si512(_mm512_clmulepi64_epi128(a, b, 0x01),
                                     _mm512_clmulepi64_epi128(a, b, 0x10)),
          .high = _mm512_clmulepi64_epi128(a, b, 0x11)};
}

OR_WIDE inline void Add(Product& sum, const Product& other) {
  sum.low = _mm512_xor_si512(sum.low, other.low);
  sum.middle = _mm512_xor_si512(sum.middle, other.middle);
  sum.high = _mm512_xor_si512(sum.high, other.high);
}

OR_WIDE inline __m128i Fold(__m512i lanes) {
  const __m256i halves =
      _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
  return _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

OR_WIDE inline __m128i SwapHalves(__m128i value) { return _mm_shuffle_epi32(value, 0x4E); }

// The sum of all lanes, in the lowest one; the others are zero.
OR_WIDE inline __m512i Reduce(const Product& product) {
  const __m128i polynomial = _mm_set_epi64x(kPolynomialHigh, 1);
  const __m128i low = Fold(product.low);
  __m128i middle = Fold(product.middle);
  const __m128i high = Fold(product.high);
  middle = _mm_xor_si128(middle, SwapHalves(low));
  middle = _mm_xor_si128(middle, _mm_clmulepi64_si128(polynomial, low, 0x01));
  const __m128i reduced = _mm_xor_si128(
      high, _mm_xor_si128(SwapHalves(middle), _mm_clmulepi64_si128(polynomial, middle, 0x01)));
  return _mm512_zextsi128_si512(reduced);
}

OR_WIDE inline __m512i Power(const CipherBlock* powers) { return _mm512_loadu_si512(powers); }

OR_WIDE inline __m512i LastPower(const CipherBlock& power) {
  __m128i value;
  std::memcpy(&value, power.data(), sizeof(value));
  return _mm512_zextsi128_si512(value);
}

OR_WIDE inline void Store(__m512i lane, CipherBlock& to) {
  const __m128i value = _mm512_castsi512_si128(lane);
  std::memcpy(to.data(), &value, sizeof(value));
}

// The point times x.
OR_WIDE inline __m512i TimesX(__m512i point) {
  std::array<std::uint64_t, 2> words;
  const __m128i value = _mm512_castsi512_si128(point);
  std::memcpy(words.data(), &value, sizeof(words));
  const std::uint64_t carry = 0 - (words[1] >> 63);
  const std::uint64_t high =
      (words[1] << 1 | words[0] >> 63) ^ (carry & static_cast<std::uint64_t>(kPolynomialHigh));
  const std::uint64_t low = words[0] << 1 ^ (carry & 1);
  return _mm512_zextsi128_si512(
      _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
}

OR_WIDE void FillPowers(const CipherBlock& point, std::span<CipherBlock> powers) {
  const __m512i first = TimesX(LoadBlock(point.data()));
  __m512i power = first;
  for (std::size_t i = powers.size(); i-- > 0;) {
    Store(power, powers[i]);
    power = Reduce(Multiply(power, first));
  }
}

OR_WIDE CipherBlock HashWide(std::span<const std::byte> data, const CipherBlock* powers,
                             std::size_t count) {
  const std::byte* at = data.data();
  std::size_t left = data.size();
  __m512i hash = _mm512_setzero_si512();
  for (const std::size_t bytes = count * kCipherBlockBytes; left >= bytes; left -= bytes) {
    Product sum = Multiply(_mm512_xor_si512(hash, Load(at)), Power(powers));
    for (std::size_t i = kLanes; i < count; i += kLanes) {
      Add(sum, Multiply(Load(at + i * kCipherBlockBytes), Power(powers + i)));
    }
    hash = Reduce(sum);
    at += bytes;
  }
  for (; left >= kWideBytes; left -= kWideBytes, at += kWideBytes) {
    hash = Reduce(Multiply(_mm512_xor_si512(hash, Load(at)), Power(powers + count - kLanes)));
  }
  const __m512i point = LastPower(powers[count - 1]);
  for (; left >= kCipherBlockBytes; left -= kCipherBlockBytes, at += kCipherBlockBytes) {
    hash = Reduce(Multiply(_mm512_xor_si512(hash, LoadBlock(at)), point));
  }
  if (left > 0) {
    CipherBlock padded{};
    std::memcpy(padded.data(), at, left);
    hash = Reduce(Multiply(_mm512_xor_si512(hash, LoadBlock(padded.data())), point));
  }
  // The lengths in bits, of what is authenticated and of what is encrypted: none.
  const __m512i lengths =
      _mm512_zextsi128_si512(_mm_set_epi64x(static_cast<long long>(data.size() * 8), 0));
  hash = Reduce(Multiply(_mm512_xor_si512(hash, lengths), point));
  const __m128i reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  CipherBlock result;
  Store(_mm512_zextsi128_si512(_mm_shuffle_epi8(_mm512_castsi512_si128(hash), reversed)), result);
  return result;
}

}  // namespace

bool Ghash::Supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("pclmul");
}

Ghash::Ghash(const CipherBlock& point) { FillPowers(point, powers_); }

CipherBlock Ghash::Hash(std::span<const std::byte> data) const {
  return HashWide(data, powers_.data(), powers_.size());
}

#else

bool Ghash::Supported() { return false; }
Ghash::Ghash(const CipherBlock& /*point*/) { OR_CHECK(Supported()); }
CipherBlock Ghash::Hash(std::span<const std::byte> /*data*/) const {
  FailCheck("GHASH is supported", __FILE__, __LINE__);
}

#endif

Ghash::~Ghash() { OPENSSL_cleanse(powers_.data(), sizeof(powers_)); }

}  // namespace optireduce
