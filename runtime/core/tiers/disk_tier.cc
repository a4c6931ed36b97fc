#include "runtime/core/tiers/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

namespace fs = std::filesystem;

constexpr size_t kNameDigits = 32;
constexpr const char* kLockName = "lock";

int64_t unix_seconds() {
  using std::chrono::system_clock, std::chrono::duration_cast, std::chrono::seconds;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

std::string folder_name(const ArchiveKey& owner) {
  char name[kNameDigits + 1];
  std::snprintf(name, sizeof name, "%016llx%016llx", static_cast<unsigned long long>(owner.high),
                static_cast<unsigned long long>(owner.low));
  return name;
}

bool is_folder_name(const std::string& name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Returns the number in the name of a file of blocks, or -1 for another file.
int64_t number_of(const std::string& name, const char* ending) {
  const size_t digits = name.size() - std::min(name.size(), std::strlen(ending));
  if (digits == 0 || name.substr(digits) != ending) return -1;
  int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + digits, number);
  return error == std::errc() && end == name.data() + digits ? number : -1;
}

bool is_ours(const std::string& name) {
  return name == kLockName || number_of(name, kSegmentEnding) >= 0 || number_of(name, kUnfinishedEnding) >= 0;
}

[[noreturn]] void refuse(const std::string& directory, const std::string& why) {
  throw Error("InvalidOptionError", concat("prefix_cache_disk=", directory, ": ", why));
}

// Opens and locks a folder's lock file. Returns its descriptor, or -1 with errno.
int lock_in(const std::string& folder) {
  const int file = open((folder + "/" + kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0 || flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

}  // namespace

DiskTier::DiskTier(const std::string& directory, int64_t limit, double ttl_s, const ArchiveKey& owner,
                   std::vector<int64_t> block_bytes, Notices& notices, CacheLog* log)
    : limit_(limit),
      ttl_s_(ttl_s),
      owner_(owner),
      block_bytes_(std::move(block_bytes)),
      notices_(notices),
      log_(log) {
  lock_folder(directory);
  try {
    open_files();
    find_strangers(directory);
    sweep();
    make_room(0);
  } catch (const fs::filesystem_error& error) {
    close(lock_file_);
    refuse(directory, concat("the directory cannot be read (", error.code().message(), "); name another"));
  } catch (...) {
    close(lock_file_);
    throw;
  }
}

DiskTier::~DiskTier() { unlock(); }

void DiskTier::unlock() {
  if (lock_file_ >= 0) close(std::exchange(lock_file_, -1));
}

void DiskTier::lock_folder(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  folder_ = directory + "/" + folder_name(owner_);
  if (!error && mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST)
    error = std::error_code(errno, std::generic_category());
  if (error)
    refuse(directory, concat("the directory cannot be written (", error.message(), "); name another"));
  lock_file_ = lock_in(folder_);
  if (lock_file_ >= 0) return;
  if (errno == EWOULDBLOCK)
    refuse(directory,
           "another running copy of this engine keeps its blocks there; give each its own directory");
  refuse(directory, concat("the directory cannot be locked (", std::strerror(errno), "); name another"));
}

// Reads the records of the files that an earlier process has left.
void DiskTier::open_files() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    names.push_back(entry.path().filename().string());
  for (const std::string& name : names) {
    const std::string path = folder_ + "/" + name;
    if (number_of(name, kUnfinishedEnding) >= 0) unlink(path.c_str());
    const int64_t number = number_of(name, kSegmentEnding);
    if (number < 0) continue;
    numbers_ = std::max(numbers_, static_cast<uint64_t>(number));
    try {
      note(static_cast<uint64_t>(number), read_index(path, owner_, block_bytes_));
    } catch (const std::runtime_error& fault) {
      unlink(path.c_str());
      ++stats_.dropped;
      notices_.add(concat("the prefix cache dropped a file: ", fault.what()));
    }
  }
}

void DiskTier::find_strangers(const std::string& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string(), path = directory + "/" + name;
    if (!is_folder_name(name) || path == folder_ || !entry.is_directory() || entry.is_symlink()) continue;
    const int lock = lock_in(path);
    if (lock < 0) continue;  // it is in use, and counts there
    close(lock);
    Stranger stranger{path, 0, 0};
    for (const fs::directory_entry& file : fs::directory_iterator(path)) {
      struct stat status;
      if (lstat(file.path().c_str(), &status) != 0) continue;
      stranger.bytes += status.st_size;
      stranger.last_use = std::max<int64_t>(stranger.last_use, status.st_mtime);
    }
    stranger_bytes_ += stranger.bytes;
    strangers_.push_back(std::move(stranger));
  }
  std::ranges::sort(strangers_, std::ranges::greater(), &Stranger::last_use);
}

std::string DiskTier::path_of(uint64_t number) const { return concat(folder_, "/", number); }

void DiskTier::note(uint64_t number, const SegmentIndex& index) {
  std::lock_guard lock(mutex_);
  DiskFile& file = files_[number];
  file.bytes = index.file_bytes;
  file.last_use = index.last_use;
  bytes_ += file.bytes;
  file.blocks.reserve(index.records.size());
  for (const SegmentRecord& record : index.records) {
    file.priority = std::max(file.priority, record.priority);
    if (!places_.try_emplace(record.id, DiskPlace{number, record}).second) continue;
    file.blocks.push_back(record.id);
    tell(true, record.id);
  }
}

// The caller must hold mutex_.
void DiskTier::tell(bool stored, const BlockId& id) const noexcept {
  if (log_) log_->add(stored, CacheTier::kDisk, id.group, id.key);
}

bool DiskTier::visit_page(BucketPlace* place, size_t limit,
                          const std::function<void(const BlockId&)>& visit) const {
  std::lock_guard lock(mutex_);
  return tensorwright::visit_page(places_, place, limit, visit);
}

bool DiskTier::is_old(const DiskFile& file, int64_t now) const {
  return ttl_s_ > 0 && static_cast<double>(now - file.last_use) > ttl_s_;
}

bool DiskTier::has(const BlockId& id) const {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  return found != places_.end() && !is_old(files_.at(found->second.file), unix_seconds());
}

bool DiskTier::read(const BlockId& id, std::span<char> out) {
  DiskPlace place;
  bool touch = false;
  {
    std::lock_guard lock(mutex_);
    const auto found = places_.find(id);
    if (found == places_.end()) return false;
    place = found->second;
    DiskFile& file = files_[place.file];
    const int64_t now = unix_seconds();
    touch = now != file.last_use;
    file.last_use = now;
  }
  const std::string path = path_of(place.file) + kSegmentEnding;
  try {
    read_stored(path, place.record, out);
  } catch (const std::logic_error&) {
    throw;
  } catch (const std::exception& fault) {
    drop(place.file, id, fault.what());
    return false;
  }
  if (touch) touch_segment(path);
  std::lock_guard lock(mutex_);
  stats_.read_bytes += static_cast<int64_t>(out.size());
  return true;
}

// Forgets a block that could not be read, unless its file was removed meanwhile, which is no fault.
void DiskTier::drop(uint64_t number, const BlockId& id, const std::string& why) {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end() || found->second.file != number) return;
  places_.erase(found);
  tell(false, id);
  std::erase(files_[number].blocks, id);
  ++stats_.dropped;
  notices_.add(concat("the prefix cache dropped a block, which is computed again: ", why));
}

bool DiskTier::fails_now() const {
  std::lock_guard lock(mutex_);
  return failed_at_ >= 0 && unix_seconds() - failed_at_ < kRetrySeconds;
}

bool DiskTier::write(std::vector<StoredBlock> blocks) {
  std::erase_if(blocks, [this](const StoredBlock& block) { return has(block.id); });
  if (blocks.empty()) return true;
  const auto lost = static_cast<int64_t>(blocks.size());
  const int64_t bytes = segment_bytes(blocks);
  if (fails_now() || bytes > limit_) {
    std::lock_guard lock(mutex_);
    stats_.failed_writes += lost;
    return false;
  }
  make_room(bytes);
  const uint64_t number = ++numbers_;
  try {
    note(number, write_segment(path_of(number), owner_, blocks));
    std::lock_guard lock(mutex_);
    stats_.written_bytes += bytes;
    failed_at_ = -1;
    return true;
  } catch (const std::runtime_error& fault) {
    std::lock_guard lock(mutex_);
    stats_.failed_writes += lost;
    failed_at_ = unix_seconds();
    if (!std::exchange(told_of_failure_, true))
      notices_.add(
          concat("the prefix cache cannot write, and goes on with what it has; it tries again every ",
                 kRetrySeconds, " s: ", fault.what()));
    return false;
  }
}

bool DiskTier::is_over(int64_t more) const {
  return bytes_ + stranger_bytes_ + more > limit_ || files_.size() + (more > 0) > kMaxFiles;
}

// Removes what others have left, then the own files that are worth least, until `bytes` more fit.
void DiskTier::make_room(int64_t bytes) {
  while (true) {
    std::vector<uint64_t> gone;
    {
      std::lock_guard lock(mutex_);
      if (!is_over(bytes)) return;
      if (strangers_.empty()) {
        const auto worth = [](const auto& entry) {
          return std::pair(entry.second.priority, entry.second.last_use);
        };
        const auto least = std::ranges::min_element(files_, {}, worth);
        if (least == files_.end()) return;
        gone.push_back(least->first);
        stats_.evicted += static_cast<int64_t>(forget_file(least->first).size());
      }
    }
    if (gone.empty()) remove_stranger();
    for (uint64_t number : gone) unlink((path_of(number) + kSegmentEnding).c_str());
  }
}

// Removes the folder that was used longest ago, unless somebody uses it by now.
bool DiskTier::remove_stranger() {
  const Stranger stranger = strangers_.back();
  strangers_.pop_back();
  {
    std::lock_guard lock(mutex_);
    stranger_bytes_ -= stranger.bytes;
  }
  const int lock = lock_in(stranger.path);
  if (lock < 0) return false;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(stranger.path, error)) {
    if (is_ours(file.path().filename().string())) unlink(file.path().c_str());
  }
  fs::remove(stranger.path, error);  // stays if it has other files
  close(lock);
  return true;
}

// The caller must hold mutex_. Returns the blocks that the file had.
std::vector<BlockId> DiskTier::forget_file(uint64_t number) {
  const auto file = files_.find(number);
  std::vector<BlockId> blocks = std::move(file->second.blocks);
  for (const BlockId& id : blocks) {
    places_.erase(id);
    tell(false, id);
  }
  bytes_ -= file->second.bytes;
  files_.erase(file);
  return blocks;
}

void DiskTier::sweep() {
  if (ttl_s_ <= 0) return;
  std::vector<uint64_t> old;
  {
    std::lock_guard lock(mutex_);
    const int64_t now = unix_seconds();
    for (const auto& [number, file] : files_) {
      if (is_old(file, now)) old.push_back(number);
    }
    for (uint64_t number : old) stats_.evicted += static_cast<int64_t>(forget_file(number).size());
  }
  for (uint64_t number : old) unlink((path_of(number) + kSegmentEnding).c_str());
}

DiskTierStats DiskTier::stats() const {
  std::lock_guard lock(mutex_);
  DiskTierStats stats = stats_;
  stats.bytes = bytes_;
  stats.blocks = static_cast<int64_t>(places_.size());
  stats.files = static_cast<int64_t>(files_.size());
  return stats;
}

}  // namespace tensorwright
