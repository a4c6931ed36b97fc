// Owns memory of a device, page-locked memory of the host, a stream, and an event.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_DEVICE_MEMORY_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/cuda/driver.h"

namespace tensorwright {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Throws Error{"OutOfMemoryError"} that says what the memory was for.
  DeviceMemory(const Driver& driver, size_t bytes, const char* purpose) : driver_(&driver), bytes_(bytes) {
    if (bytes == 0) return;
    const int result = driver.mem_alloc(&address_, bytes);
    if (result == Driver::kOutOfMemory) {
      throw Error("OutOfMemoryError",
                  concat("[cuda] ", driver.facts().name, " has no ", bytes, " bytes for the ", purpose, ", ",
                         driver.free_memory(), " are free"));
    }
    driver.check(result, "cuMemAlloc");
  }
  ~DeviceMemory() {
    if (address_) driver_->mem_free(address_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  DevicePointer address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(driver_, other.driver_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }

  const Driver* driver_ = nullptr;
  DevicePointer address_ = 0;
  size_t bytes_ = 0;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Throws Error{"OutOfMemoryError"} that says what the memory was for.
  PinnedMemory(const Driver& driver, size_t bytes, const char* purpose) : driver_(&driver), bytes_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    const int result = driver.mem_host_alloc(&data, bytes, 0);
    if (result == Driver::kOutOfMemory) {
      throw Error("OutOfMemoryError", concat("[cuda] this machine has no ", bytes,
                                             " bytes of page-locked memory for the ", purpose));
    }
    driver.check(result, "cuMemHostAlloc");
    data_ = static_cast<char*>(data);
  }
  ~PinnedMemory() {
    if (data_) driver_->mem_free_host(data_);
  }
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(PinnedMemory& other) {
    std::swap(driver_, other.driver_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  const Driver* driver_ = nullptr;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// A stream that does not wait for the null stream.
class Stream {
 public:
  explicit Stream(const Driver& driver) : driver_(driver) {
    constexpr unsigned kNonBlocking = 1;
    driver.check(driver.stream_create(&stream_, kNonBlocking), "cuStreamCreate");
  }
  ~Stream() { driver_.stream_destroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CudaStream* get() const { return stream_; }
  void synchronize() const { driver_.check(driver_.stream_synchronize(stream_), "cuStreamSynchronize"); }

 private:
  const Driver& driver_;
  CudaStream* stream_ = nullptr;
};

// A point in what a stream was given.
class StreamEvent {
 public:
  explicit StreamEvent(const Driver& driver) : driver_(&driver) {
    constexpr unsigned kDisableTiming = 2;
    driver.check(driver.event_create(&event_, kDisableTiming), "cuEventCreate");
  }
  ~StreamEvent() {
    if (event_) driver_->event_destroy(event_);
  }
  StreamEvent(StreamEvent&& other) noexcept
      : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}
  StreamEvent& operator=(StreamEvent&&) = delete;

  // Moves the point behind all that the stream was given.
  void record(const Stream& stream) const {
    driver_->check(driver_->event_record(event_, stream.get()), "cuEventRecord");
  }
  // Waits until the stream has come to the point.
  void synchronize() const { driver_->check(driver_->event_synchronize(event_), "cuEventSynchronize"); }

 private:
  const Driver* driver_;
  CudaEvent* event_ = nullptr;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_DEVICE_MEMORY_H_
