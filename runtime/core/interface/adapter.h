// An adapter (LoRA: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"), as whoever uses an
// executor knows it: a thing that the executor has made and that requests name.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ADAPTER_H_
#define TENSORWRIGHT_RUNTIME_CORE_ADAPTER_H_

#include <memory>
#include <string>
#include <utility>

namespace tensorwright {

// The weights of one adapter in the form of the executor that made it. They do not change. Requests share an
// adapter, and its memory is free when the last of them, and whoever loaded it, lets go of it.
class Adapter {
 public:
  // key: a text that is equal for adapters of equal content only. It is a part of the key of the prefix
  // cache.
  explicit Adapter(std::string key) : key_(std::move(key)) {}
  virtual ~Adapter() = default;
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  const std::string& key() const { return key_; }

 private:
  const std::string key_;
};

using SharedAdapter = std::shared_ptr<const Adapter>;

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ADAPTER_H_
