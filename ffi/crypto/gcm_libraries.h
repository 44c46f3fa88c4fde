// AES-128-GCM by each of the two libraries.

#ifndef FFI_CRYPTO_GCM_LIBRARIES_H_
#define FFI_CRYPTO_GCM_LIBRARIES_H_

#include <cstddef>
#include <memory>
#include <string>

#include "ffi/base/status.h"
#include "ffi/crypto/gcm.h"

namespace optireduce {

inline unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// OpenSSL.
namespace libcrypto {

// "OpenSSL 3.0.19 27 Jan 2026"; a static library adds ", built in".
std::string Version();
Result<std::unique_ptr<Gcm>> NewGcm(const Key& key);

// The error of a libcrypto that lacks an algorithm.
Status Lacks(const std::string& algorithm);

}  // namespace libcrypto

// Intel's library for IPsec (intel-ipsec-mb), for x86-64: a third of libcrypto's time for short
// datagrams, since nothing is looked up or checked twice for each, and 512-bit vectors with
// processors that have them.
namespace ipsec_mb {

// True if the build has found the library, and the processor has the instructions for AES-GCM.
bool IsUsable();
// The others require it.
std::string Version();  // "intel-ipsec-mb 1.3.0"
Result<std::unique_ptr<Gcm>> NewGcm(const Key& key);

}  // namespace ipsec_mb
}  // namespace optireduce

#endif  // FFI_CRYPTO_GCM_LIBRARIES_H_
