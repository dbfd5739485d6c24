# The one type that pure-Python mode cannot spell: a pointer to the CRC function of libcrc32c.
ctypedef unsigned int (*crc_function)(unsigned int, const unsigned char*, size_t) noexcept nogil

cdef crc_function _crc_extend

# And one call of the compiler's: look-ups in a large map wait for memory, unless it is told what comes next.
cdef extern from *:
    void prefetch "__builtin_prefetch" (const void*) noexcept nogil
