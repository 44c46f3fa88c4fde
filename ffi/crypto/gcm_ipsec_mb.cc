#include "ffi/crypto/gcm_libraries.h"

#ifdef OPTIREDUCE_IPSEC_MB

#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <array>

namespace optireduce::ipsec_mb {
namespace {

// The functions for this processor, or null. The functions used here only read the manager, so all
// keys and threads share it. Never freed: threads may still use it while the process ends.
const IMB_MGR* Functions() {
  static const IMB_MGR* const manager = []() -> const IMB_MGR* {
    IMB_MGR* const chosen = alloc_mb_mgr(0);
    if (chosen == nullptr) return nullptr;
    IMB_ARCH architecture = IMB_ARCH_NONE;
    init_mb_mgr_auto(chosen, &architecture);
    // Below it AES is computed by tables, not in constant time.
    if (architecture >= IMB_ARCH_SSE) return chosen;
    free_mb_mgr(chosen);
    return nullptr;
  }();
  return manager;
}

class IpsecMbGcm final : public Gcm {
 public:
  explicit IpsecMbGcm(const Key& key) { IMB_AES128_GCM_PRE(functions_, key.data(), &key_); }
  ~IpsecMbGcm() override { OPENSSL_cleanse(&key_, sizeof(key_)); }

  void Authenticate(const Nonce& nonce, std::span<const std::byte> header,
                    std::span<const std::byte> payload,
                    std::span<std::byte, kTagBytes> tag) override {
    IMB_AES128_GMAC_INIT(functions_, &key_, &state_, nonce.data(), nonce.size());
    for (const std::span<const std::byte> part : {header, payload}) {
      if (part.empty()) continue;
      IMB_AES128_GMAC_UPDATE(functions_, &key_, &state_, Raw(part.data()), part.size());
    }
    IMB_AES128_GMAC_FINALIZE(functions_, &key_, &state_, Raw(tag.data()), tag.size());
  }

  void Encrypt(const Nonce& nonce, std::span<const std::byte> header,
               std::span<const std::byte> payload, std::span<std::byte> encrypted,
               std::span<std::byte, kTagBytes> tag) override {
    IMB_AES128_GCM_ENC(functions_, &key_, &state_, Raw(encrypted.data()), Raw(payload.data()),
                       payload.size(), nonce.data(), Raw(header.data()), header.size(),
                       Raw(tag.data()), tag.size());
  }

  bool Decrypt(const Nonce& nonce, std::span<const std::byte> header,
               std::span<const std::byte> encrypted, std::span<const std::byte, kTagBytes> tag,
               std::span<std::byte> payload) override {
    std::array<std::byte, kTagBytes> right;
    IMB_AES128_GCM_DEC(functions_, &key_, &state_, Raw(payload.data()), Raw(encrypted.data()),
                       encrypted.size(), nonce.data(), Raw(header.data()), header.size(),
                       Raw(right.data()), right.size());
    return CRYPTO_memcmp(right.data(), tag.data(), tag.size()) == 0;
  }

 private:
  const IMB_MGR* const functions_ = Functions();
  gcm_key_data key_;
  gcm_context_data state_;
};

}  // namespace

bool IsUsable() { return Functions() != nullptr; }

std::string Version() { return std::string("intel-ipsec-mb ") + imb_get_version_str(); }

Result<std::unique_ptr<Gcm>> NewGcm(const Key& key) {
  return std::unique_ptr<Gcm>(std::make_unique<IpsecMbGcm>(key));
}

}  // namespace optireduce::ipsec_mb

#else

#include "ffi/base/check.h"

namespace optireduce::ipsec_mb {

bool IsUsable() { return false; }

std::string Version() { FailCheck("IsUsable()", __FILE__, __LINE__); }

Result<std::unique_ptr<Gcm>> NewGcm(const Key& /*key*/) {
  FailCheck("IsUsable()", __FILE__, __LINE__);
}

}  // namespace optireduce::ipsec_mb

#endif  // OPTIREDUCE_IPSEC_MB
