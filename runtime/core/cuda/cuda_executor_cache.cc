// Copies blocks of the KV cache and states of recurrent layers on a device, out of it and into it.
#include "runtime/core/base/concat.h"
#include "runtime/core/cuda/cuda_executor.h"

namespace tensorwright {

void CudaExecutor::check_blocks(const char* call, int32_t group,
                                std::initializer_list<int32_t> blocks) const {
  if (group < 0 || static_cast<size_t>(group) >= blocks_.size())
    refuse(concat(call, ": there is no cache group ", group));
  for (const int32_t block : blocks) {
    if (block < 0 || block >= blocks_[static_cast<size_t>(group)])
      refuse(concat(call, ": there is no block ", block, " in cache group ", group));
  }
}

void CudaExecutor::copy_block(int32_t group, int32_t from, int32_t to) {
  check_blocks("copy_block", group, {from, to});
  for (const PageTensor& tensor : pages_) {
    if (tensor.group != static_cast<uint32_t>(group)) continue;
    const auto at = [&](int32_t block) {
      return tensor.memory.address() + tensor.block_bytes * static_cast<size_t>(block);
    };
    driver_.check(driver_.copy_on_device_async(at(to), at(from), tensor.block_bytes, stream_.get()),
                  "cuMemcpyDtoDAsync");
  }
}

void CudaExecutor::check_slots(const char* call, std::initializer_list<int32_t> slots) const {
  for (const int32_t slot : slots) {
    if (slot < 0 || slot >= limits_.state_slots)
      refuse(concat(call, ": slot must be 0 to ", limits_.state_slots - 1, ", is ", slot));
  }
}

DevicePointer CudaExecutor::state_at(int32_t slot) const {
  return states_.address() + plan_.state_bytes() * static_cast<size_t>(slot);
}

void CudaExecutor::copy_state(int32_t from, int32_t to) {
  check_slots("copy_state", {from, to});
  if (from == to) return;
  driver_.check(
      driver_.copy_on_device_async(state_at(to), state_at(from), plan_.state_bytes(), stream_.get()),
      "cuMemcpyDtoDAsync");
}

void CudaExecutor::read_state(int32_t slot, char* to) const {
  check_slots("read_state", {slot});
  driver_.check(driver_.copy_to_host_async(to, state_at(slot), plan_.state_bytes(), stream_.get()),
                "cuMemcpyDtoHAsync");
  stream_.synchronize();
}

void CudaExecutor::write_state(int32_t slot, const char* from) {
  check_slots("write_state", {slot});
  driver_.check(driver_.copy_to_device_async(state_at(slot), from, plan_.state_bytes(), stream_.get()),
                "cuMemcpyHtoDAsync");
  stream_.synchronize();
}

void CudaExecutor::read_block(int32_t group, int32_t block, char* to) const {
  check_blocks("read_block", group, {block});
  for (const PageTensor& tensor : pages_) {
    if (tensor.group != static_cast<uint32_t>(group)) continue;
    driver_.check(driver_.copy_to_host_async(
                      to, tensor.memory.address() + tensor.block_bytes * static_cast<size_t>(block),
                      tensor.block_bytes, stream_.get()),
                  "cuMemcpyDtoHAsync");
    to += tensor.block_bytes;
  }
  stream_.synchronize();
}

void CudaExecutor::write_block(int32_t group, int32_t block, const char* from) {
  check_blocks("write_block", group, {block});
  for (const PageTensor& tensor : pages_) {
    if (tensor.group != static_cast<uint32_t>(group)) continue;
    driver_.check(driver_.copy_to_device_async(
                      tensor.memory.address() + tensor.block_bytes * static_cast<size_t>(block), from,
                      tensor.block_bytes, stream_.get()),
                  "cuMemcpyHtoDAsync");
    from += tensor.block_bytes;
  }
  stream_.synchronize();
}

}  // namespace tensorwright
