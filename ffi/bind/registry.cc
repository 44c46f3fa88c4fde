#include "ffi/bind/registry.h"

#include <unistd.h>

#include <utility>

#include "ffi/base/quoted.h"

namespace optireduce {

Registry& Registry::Global() {
  static Registry* const registry = new Registry;
  return *registry;
}

Registry::Registry() : pool_(std::make_shared<CompletionPool>()) {}

Result<std::shared_ptr<Communicator>> Registry::Open(const CommunicatorOptions& options) {
  const std::lock_guard lock(mutex_);
  if (communicators_.contains(options.name)) {
    return Status(StatusCode::kFailedPrecondition,
                  "a communicator named " + Quoted(options.name) +
                      " is open in this process; close it first, or give this one another name.");
  }
  Result<std::shared_ptr<Communicator>> opened = Communicator::Create(options, pool_);
  if (opened.ok()) {
    communicators_.emplace(options.name, opened.value());
    process_ = getpid();
  }
  return opened;
}

void Registry::Rename(const std::shared_ptr<Communicator>& communicator, const std::string& name) {
  std::shared_ptr<Communicator> previous = communicator;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [&](const auto& entry) { return entry.second == communicator; });
  std::swap(communicators_[name], previous);
}

void Registry::Close(const std::shared_ptr<Communicator>& communicator, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(communicators_, [&](const auto& entry) { return entry.second == communicator; });
  }
  communicator->Close(reason);
}

Result<std::shared_ptr<Communicator>> Registry::Find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto entry = communicators_.find(name);
  if (entry != communicators_.end()) return entry->second;
  return Status(StatusCode::kFailedPrecondition,
                "no communicator named " + Quoted(name) +
                    " is open in this process; call jax_optireduce.init() before the first step, "
                    "in a process that was started again jax_optireduce.join(), too, and "
                    "jax_optireduce.shutdown() only after the last one.");
}

std::vector<std::shared_ptr<Communicator>> Registry::All() const {
  // Before the lock, which a thread of the parent may have held during the fork.
  if (getpid() != process_) return {};
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& [name, communicator] : communicators_) all.push_back(communicator);
  return all;
}

void Registry::CloseAll(const std::string& reason) {
  for (const auto& communicator : All()) communicator->Close(reason);
}

}  // namespace optireduce
