# The one type that pure-Python mode cannot spell: a pointer to the CRC function of libcrc32c.
ctypedef unsigned int (*crc_function)(unsigned int, const unsigned char*, size_t) noexcept nogil

cdef crc_function _crc_extend
