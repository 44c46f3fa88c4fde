// Compiles one loop for several vector widths, one of which is selected at program start: a build
// for any x86-64 processor uses the vectors of the actual one.

#ifndef FFI_CODEC_DISPATCH_H_
#define FFI_CODEC_DISPATCH_H_

// <cstddef> defines __GLIBC__.
#include <cstddef>
#include <cstdint>

// The selection at run time is an "indirect function" of the dynamic linker. The C library must
// support these functions; they run before a sanitizer has set up the memory that they would use.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define OR_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OR_SANITIZED 1
#endif

// Precedes a function. Its callees must be OR_INLINE to be compiled for its width.
#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__) && !defined(OR_SANITIZED)
#define OR_VECTOR_WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OR_VECTOR_WIDTHS
#endif

#if defined(__GNUC__)
#define OR_INLINE [[gnu::always_inline]] inline
#else
#define OR_INLINE inline
#endif

// Precedes a loop with independent iterations: none reads the output of another. The compiler
// cannot prove that if the result may overwrite one of the inputs.
#if defined(__clang__)
#define OR_INDEPENDENT_TURNS _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define OR_INDEPENDENT_TURNS _Pragma("GCC ivdep")
#else
#define OR_INDEPENDENT_TURNS
#endif

namespace optireduce {

// `a` where `condition` holds, `b` elsewhere, without a branch: the compiler would otherwise move
// the computation of `a` into a branch and not vectorize the loop.
OR_INLINE std::uint32_t Select(bool condition, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

}  // namespace optireduce

#endif  // FFI_CODEC_DISPATCH_H_
