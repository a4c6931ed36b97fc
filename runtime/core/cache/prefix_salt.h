// Joins what keeps the prefixes of two requests apart, the adapter and the salt of the caller, to one salt,
// and takes it apart again.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_SALT_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_SALT_H_

#include <string>
#include <string_view>

namespace tensorwright {

// The first character of the salt of a request with an adapter, and the one behind the adapter's key. No salt
// of a caller begins with it, and no key holds it: so a key and a salt are never taken for another pair.
inline constexpr char kAdapterMark = '\0';

struct SaltParts {
  std::string_view adapter;  // the key of the adapter's content; empty: the model alone
  std::string_view salt;     // that of the caller
};

inline std::string join_salt(const SaltParts& parts) {
  std::string joined(1, kAdapterMark);
  joined += parts.adapter;
  joined += kAdapterMark;
  joined += parts.salt;
  return joined;
}

// Takes apart the salt of any request, also of one without an adapter. The parts refer to `joined`.
inline SaltParts split_salt(std::string_view joined) {
  if (joined.empty() || joined.front() != kAdapterMark) return {{}, joined};
  const size_t end = joined.find(kAdapterMark, 1);
  return {joined.substr(1, end - 1), joined.substr(end + 1)};
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_SALT_H_
