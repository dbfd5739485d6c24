# One call of the compiler's: look-ups in a large map wait for memory, unless the code prefetches what comes next.
cdef extern from *:
    void prefetch "__builtin_prefetch" (const void*) noexcept nogil
