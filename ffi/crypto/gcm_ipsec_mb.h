// AES-128-GCM by Intel's library for IPsec (intel-ipsec-mb), for x86-64: a third of libcrypto's
// time for short datagrams, since nothing is looked up or checked twice for each, and 512-bit
// vectors with processors that have them.

#ifndef FFI_CRYPTO_GCM_IPSEC_MB_H_
#define FFI_CRYPTO_GCM_IPSEC_MB_H_

#include <memory>
#include <string>

#include "ffi/base/status.h"
#include "ffi/crypto/gcm.h"

namespace optireduce::ipsec_mb {

// True if the build has found the library, and the processor has the instructions for AES-GCM.
bool IsUsable();
// The others require it.
std::string Version();  // "intel-ipsec-mb 1.3.0"
Result<std::unique_ptr<Gcm>> NewGcm(const Key& key);

}  // namespace optireduce::ipsec_mb

#endif  // FFI_CRYPTO_GCM_IPSEC_MB_H_
