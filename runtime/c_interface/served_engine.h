// An engine of target cpu as the C interface has it: opened from a folder, with requests, events, facts and
// statistics.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_SERVED_ENGINE_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_SERVED_ENGINE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/c_interface/event_board.h"
#include "runtime/c_interface/json_values.h"
#include "runtime/core/engine/engine.h"

namespace tensorwright {

// Any thread may call the members.
class ServedEngine {
 public:
  // path: the engine's folder. options: JSON. Throws Error: EngineError, TaskError, InvalidOptionError,
  // OutOfMemoryError, IsaError.
  ServedEngine(const std::string& path, std::string_view options);

  // Returns the number of the request. first_mask: not empty for a guided request. Throws Error:
  // InvalidRequestError, PromptTooLongError, QueueFullError, EngineStoppedError.
  int64_t submit(std::vector<int32_t> tokens, std::string_view params, MaskWords first_mask);
  // As EventBoard::wait().
  void wait(int64_t request, double timeout_s, const EventBoard::HandOver& hand_over) {
    board_->wait(request, timeout_s, hand_over);
  }
  bool cancel(int64_t request, int32_t completion) { return engine_->abort(request, completion); }
  bool set_mask(int64_t request, int32_t completion, int32_t generated, MaskWords words) {
    return engine_->set_mask(request, completion, generated, std::move(words));
  }
  const std::string& facts() const { return facts_; }  // an object of JSON
  std::string stats() const;                           // an object of JSON
  // Refuses new requests, and lets the others finish for at most `drain_s` seconds; negative: without limit.
  // Returns when the engine has ended.
  void shutdown(double drain_s) { engine_->shutdown(drain_s != 0, drain_s); }
  // Throws Error{"ForkedEngineError"} in a fork of the process that opened the engine.
  void check_process() const;
  bool is_here() const;

 private:
  int32_t room_for(const Request& request) const;

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EventBoard> board_;
  std::vector<int32_t> eos_token_ids_;
  std::string facts_;
  std::atomic<int64_t> last_request_ = 0;
  const pid_t process_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_SERVED_ENGINE_H_
