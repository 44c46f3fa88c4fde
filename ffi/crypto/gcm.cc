#include "ffi/crypto/gcm.h"

#include "ffi/base/check.h"
#include "ffi/crypto/gcm_libraries.h"

namespace optireduce {

CipherLibrary FastestCipherLibrary() {
  return ipsec_mb::IsUsable() ? CipherLibrary::kIpsecMb : CipherLibrary::kLibcrypto;
}

std::string Describe(CipherLibrary library) {
  return library == CipherLibrary::kIpsecMb ? ipsec_mb::Version() : libcrypto::Version();
}

Result<std::unique_ptr<Gcm>> Gcm::Create(const Key& key, CipherLibrary library) {
  if (library == CipherLibrary::kLibcrypto) return libcrypto::NewGcm(key);
  OR_CHECK(ipsec_mb::IsUsable());
  return ipsec_mb::NewGcm(key);
}

}  // namespace optireduce
