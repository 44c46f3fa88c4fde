#include "ffi/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "ffi/base/bytes.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Chosen: limits of the field types of a format.
constexpr std::array<std::uint8_t, 8> kTellingBytes = {0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, 0x10};
// Chosen: the largest piece that is removed or duplicated.
constexpr std::size_t kPieceBytesMax = 32;

struct Field {
  std::size_t offset;
  std::size_t bytes;
};
// The layout at the top of wire.h.
constexpr std::array<Field, 9> kFields = {
    {{0, 1}, {1, 1}, {2, 2}, {4, 4}, {8, 4}, {12, 4}, {16, 4}, {20, 6}, {26, 2}}};

// A small, a large, or any number.
std::uint64_t TellingNumber(Prng& prng) {
  switch (prng.Below(4)) {
    case 0:
      return prng.Below(5);
    case 1:
      return ~prng.Below(5);
    case 2:
      return std::uint64_t{1} << prng.Below(64);
    default:
      return prng.Next();
  }
}

// Flipped in one bit, telling, or any.
std::byte MutatedByte(Prng& prng, std::uint64_t way, std::byte byte) {
  if (way == 0) return byte ^ static_cast<std::byte>(1u << prng.Below(8));
  return std::byte{way == 1 ? kTellingBytes[prng.Below(kTellingBytes.size())]
                            : static_cast<std::uint8_t>(prng.Below(256))};
}

}  // namespace

void MutateOnce(Prng& prng, Bytes& bytes, std::size_t bytes_max) {
  const std::size_t at = prng.Below(bytes.size() + 1);
  const auto position = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t piece =
      std::min<std::size_t>(1 + prng.Below(kPieceBytesMax), bytes.size() - at);
  const Bytes copy(position, position + static_cast<std::ptrdiff_t>(piece));
  const std::uint64_t way = prng.Below(6);
  switch (way) {
    case 3:
      bytes.erase(position, position + static_cast<std::ptrdiff_t>(piece));
      break;
    case 4:
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(prng.Below(bytes.size() + 1)),
                   copy.begin(), copy.end());
      break;
    case 5:
      for (std::size_t i = 0; i <= prng.Below(kPieceBytesMax); ++i) {
        bytes.push_back(static_cast<std::byte>(prng.Below(256)));
      }
      break;
    default:
      if (at < bytes.size()) bytes[at] = MutatedByte(prng, way, bytes[at]);
  }
  if (bytes.size() > bytes_max) bytes.resize(bytes_max);
}

void MutateField(Prng& prng, Bytes& datagram) {
  if (datagram.size() < kHeaderBytes) return;
  const Field field = kFields[prng.Below(kFields.size())];
  const auto at = std::span(datagram).subspan(field.offset, field.bytes);
  // Changed by one, or replaced.
  std::uint64_t value = ByteReader(at).Read<std::uint64_t>(field.bytes);
  if (prng.Below(2) == 0) {
    value += prng.Below(2) == 0 ? 1 : ~std::uint64_t{0};
  } else {
    value = TellingNumber(prng);
  }
  ByteWriter(at).Write(value, field.bytes);
}

}  // namespace optireduce
