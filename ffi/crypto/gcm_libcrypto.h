// AES-128-GCM by OpenSSL's libcrypto.

#ifndef FFI_CRYPTO_GCM_LIBCRYPTO_H_
#define FFI_CRYPTO_GCM_LIBCRYPTO_H_

#include <memory>
#include <string>

#include "ffi/base/status.h"
#include "ffi/crypto/gcm.h"

namespace optireduce::libcrypto {

// "OpenSSL 3.0.19 27 Jan 2026"; a static library adds ", built in".
std::string Version();
Result<std::unique_ptr<Gcm>> NewGcm(const Key& key);

// The error of a libcrypto that lacks an algorithm.
Status Lacks(const std::string& algorithm);

}  // namespace optireduce::libcrypto

#endif  // FFI_CRYPTO_GCM_LIBCRYPTO_H_
