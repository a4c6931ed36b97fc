// Lets the module of a wheel run with glibc 2.28, whatever newer glibc it was linked with (PEP 600,
// manylinux_2_28).
//
// glibc gave some functions new versions or names since: a module that is linked with a newer glibc asks for
// those. The functions of this file stand in their place inside the module. They call the versions that
// glibc 2.28 has, which every later glibc still has. CMake compiles this file only with
// TENSORWRIGHT_OLD_GLIBC. It declares what it needs by itself: the headers of the system would give the names
// their new versions.

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#define AFFINITY "GLIBC_2.3.4"
#elif defined(__aarch64__)
#define BASE "GLIBC_2.17"
#define AFFINITY "GLIBC_2.17"
#else
#error "the first version of glibc for this processor is not known"
#endif

// A function of this file, which no other library may find.
#define HERE extern "C" __attribute__((visibility("hidden")))
// Declares `old_name` to be the function `name` of a version of glibc.
#define OLD(name, version) __asm__(".symver old_" #name "," #name "@" version)

// Functions of one number, whose new versions of glibc 2.29 no longer report errors to a function of System
// V.
#define OF_ONE_NUMBER(name)               \
  extern "C" double old_##name(double x); \
  OLD(name, BASE);                        \
  HERE double name(double x) { return old_##name(x); }

OF_ONE_NUMBER(exp)
OF_ONE_NUMBER(exp2)
OF_ONE_NUMBER(log)

extern "C" double old_pow(double x, double y);
OLD(pow, BASE);
HERE double pow(double x, double y) { return old_pow(x, y); }

// glibc 2.34 moved these from libdl and libpthread into libc. CMake links both libraries, so that they are
// there before.
extern "C" void* old_dlopen(const char* file, int mode);
OLD(dlopen, BASE);
HERE void* dlopen(const char* file, int mode) { return old_dlopen(file, mode); }

extern "C" void* old_dlsym(void* library, const char* name);
OLD(dlsym, BASE);
HERE void* dlsym(void* library, const char* name) { return old_dlsym(library, name); }

extern "C" char* old_dlerror();
OLD(dlerror, BASE);
HERE char* dlerror() { return old_dlerror(); }

extern "C" int old_pthread_setaffinity_np(unsigned long thread, unsigned long bytes, const void* processors);
OLD(pthread_setaffinity_np, AFFINITY);
HERE int pthread_setaffinity_np(unsigned long thread, unsigned long bytes, const void* processors) {
  return old_pthread_setaffinity_np(thread, bytes, processors);
}

extern "C" int old_pthread_create(unsigned long* thread, const void* attributes, void* (*work)(void*),
                                  void* argument);
OLD(pthread_create, BASE);
HERE int pthread_create(unsigned long* thread, const void* attributes, void* (*work)(void*), void* argument) {
  return old_pthread_create(thread, attributes, work, argument);
}

extern "C" int old_pthread_join(unsigned long thread, void** result);
OLD(pthread_join, BASE);
HERE int pthread_join(unsigned long thread, void** result) { return old_pthread_join(thread, result); }

extern "C" int old_pthread_detach(unsigned long thread);
OLD(pthread_detach, BASE);
HERE int pthread_detach(unsigned long thread) { return old_pthread_detach(thread); }

extern "C" int old_pthread_once(int* done, void (*work)());
OLD(pthread_once, BASE);
HERE int pthread_once(int* done, void (*work)()) { return old_pthread_once(done, work); }

// Keys of threads, and locks of many readers, which libtensorwright.so takes.
extern "C" int old_pthread_key_create(unsigned* key, void (*end)(void*));
OLD(pthread_key_create, BASE);
HERE int pthread_key_create(unsigned* key, void (*end)(void*)) { return old_pthread_key_create(key, end); }

extern "C" int old_pthread_key_delete(unsigned key);
OLD(pthread_key_delete, BASE);
HERE int pthread_key_delete(unsigned key) { return old_pthread_key_delete(key); }

extern "C" void* old_pthread_getspecific(unsigned key);
OLD(pthread_getspecific, BASE);
HERE void* pthread_getspecific(unsigned key) { return old_pthread_getspecific(key); }

extern "C" int old_pthread_setspecific(unsigned key, const void* value);
OLD(pthread_setspecific, BASE);
HERE int pthread_setspecific(unsigned key, const void* value) { return old_pthread_setspecific(key, value); }

#define OF_A_LOCK(name)                  \
  extern "C" int old_##name(void* lock); \
  OLD(name, BASE);                       \
  HERE int name(void* lock) { return old_##name(lock); }

OF_A_LOCK(pthread_rwlock_rdlock)
OF_A_LOCK(pthread_rwlock_wrlock)
OF_A_LOCK(pthread_rwlock_unlock)

extern "C" int old___pthread_key_create(unsigned* key, void (*end)(void*));
OLD(__pthread_key_create, BASE);
HERE int __pthread_key_create(unsigned* key, void (*end)(void*)) {
  return old___pthread_key_create(key, end);
}

// glibc 2.30 waits until a time of a clock. An older one knows the time of day alone, from which the wait is
// counted again: a change of the time of day then makes the wait longer or shorter, as in programs of that
// time.
extern "C" int pthread_cond_timedwait(void* condition, void* mutex, const timespec* until);
using ClockWait = int (*)(void*, void*, int, const timespec*);

HERE int pthread_cond_clockwait(void* condition, void* mutex, int clock, const timespec* until) {
  static const ClockWait newer = reinterpret_cast<ClockWait>(old_dlsym(nullptr, "pthread_cond_clockwait"));
  if (newer) return newer(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1000000000;
  timespec now{}, day{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &day);
  const int64_t left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  const int64_t nanoseconds = day.tv_nsec + (left > 0 ? left : 0);
  const timespec then{day.tv_sec + nanoseconds / kSecond, static_cast<long>(nanoseconds % kSecond)};
  return pthread_cond_timedwait(condition, mutex, &then);
}

// glibc 2.38 has further names for functions that read numbers. C++ that is compiled with its headers calls
// those, which take numbers such as 0b1 too.
#define OF_A_TEXT(name, type)                                   \
  extern "C" type name(const char* text, char** end, int base); \
  HERE type __isoc23_##name(const char* text, char** end, int base) { return name(text, end, base); }

OF_A_TEXT(strtol, long)
OF_A_TEXT(strtoll, long long)
OF_A_TEXT(strtoul, unsigned long)
OF_A_TEXT(strtoull, unsigned long long)

extern "C" int __isoc99_vsscanf(const char* text, const char* format, __builtin_va_list values);
HERE int __isoc23_sscanf(const char* text, const char* format, ...) {
  __builtin_va_list values;
  __builtin_va_start(values, format);
  const int found = __isoc99_vsscanf(text, format, values);
  __builtin_va_end(values);
  return found;
}

// Until glibc 2.33, these were functions of the header that called others. The kernel fills in the same
// structure.
extern "C" long syscall(long number, ...);
constexpr int kEmptyPath = 0x1000, kNoFollow = 0x100, kWorkingFolder = -100;

HERE int fstat(int file, void* facts) {
  return static_cast<int>(syscall(SYS_newfstatat, file, "", facts, kEmptyPath));
}
HERE int fstat64(int file, void* facts) { return fstat(file, facts); }
HERE int stat(const char* path, void* facts) {
  return static_cast<int>(syscall(SYS_newfstatat, kWorkingFolder, path, facts, 0));
}
HERE int lstat(const char* path, void* facts) {
  return static_cast<int>(syscall(SYS_newfstatat, kWorkingFolder, path, facts, kNoFollow));
}

// glibc 2.36 has random numbers of its own, which libstdc++'s random_device takes.
extern "C" int getentropy(void* numbers, unsigned long bytes);
extern "C" [[noreturn]] void abort();
HERE uint32_t arc4random() {
  uint32_t number = 0;
  if (getentropy(&number, sizeof number) != 0) abort();  // as glibc does where the system has none
  return number;
}

// glibc 2.32 says whether there is one thread, and libstdc++ then counts references without atomic
// operations.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
