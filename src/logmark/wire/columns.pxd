# The one type that pure-Python mode cannot spell: a pointer to the CRC function of libcrc32c.
ctypedef unsigned int (*crc_function)(unsigned int, const unsigned char*, size_t) noexcept nogil

cdef crc_function _crc_extend

# What `compaction_filter` uses of the walk over records.
cdef const unsigned char* _memory(const unsigned char[::1] data)
cdef unsigned int _crc(const unsigned char* b, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef unsigned int _uint32(const unsigned char* b, Py_ssize_t at) noexcept nogil
cdef long long _int32(const unsigned char* b, Py_ssize_t at) noexcept nogil
cdef long long _int64(const unsigned char* b, Py_ssize_t at) noexcept nogil
cdef long long _sum(long long left, long long right) noexcept nogil
cdef long long _varint(const unsigned char* b, Py_ssize_t* at, Py_ssize_t end, int bytes_max) noexcept nogil
cdef bint _record(const unsigned char* b, Py_ssize_t* at, Py_ssize_t end, long long* field) noexcept nogil
cdef void _write_int32(unsigned char* out, Py_ssize_t at, long long value) noexcept nogil
cdef void _room(bytearray column, Py_ssize_t size, bint full)
cdef Py_ssize_t _copy(
    unsigned char* out, Py_ssize_t at, const unsigned char* b, Py_ssize_t begin, Py_ssize_t size
) noexcept nogil
