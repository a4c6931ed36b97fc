// The events of an engine's prefix cache in Python, and its whole content page by page.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_CACHE_FEED_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_CACHE_FEED_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include "runtime/bindings/live_engines.h"

namespace tensorwright {

// Does not keep the engine alive. Every call throws Error{"InvalidRequestError"} of an engine without
// cache_events, and EngineStoppedError if the engine is gone.
class CacheFeed {
 public:
  // number, stored, tier, group, block, parent, salt, adapter, token ids. tier: 0 KV cache, 1 memory, 2 disk.
  // Names are texts of 32 hexadecimal digits; None where there is none. Token ids: None of a block in a tier.
  using EventList = nanobind::typed<nanobind::list, nanobind::tuple>;
  // stage, number, buckets, bucket: see ContentPlace. Stage 4 is the end.
  using Place = std::tuple<int32_t, uint64_t, uint64_t, uint64_t>;

  explicit CacheFeed(const std::shared_ptr<RunningEngine>& engine) : engine_(engine) {}

  uint64_t epoch() const;
  int64_t begin() const;
  // Returns the events, the number to go on behind, and how many events are lost.
  std::tuple<EventList, int64_t, int64_t> read(int64_t after, size_t limit, double timeout_s) const;
  std::tuple<EventList, Place> content(const Place& place, size_t limit, double timeout_s) const;
  std::string salt_name(const std::string& salt) const;
  std::string adapter_name(const std::string& key) const;

 private:
  void visit(const std::function<void(Engine&)>& work) const;

  std::weak_ptr<RunningEngine> engine_;
};

void bind_cache_feed(nanobind::module_& m);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_CACHE_FEED_H_
