# What the machine runs: instructions, registers, operations; and the values that it computes with.

cdef extern from *:
    """
    #define ADD_OVERFLOWS(a, b, to) __builtin_add_overflow((long long)(a), (long long)(b), (long long *)(to))
    #define SUB_OVERFLOWS(a, b, to) __builtin_sub_overflow((long long)(a), (long long)(b), (long long *)(to))
    #define MUL_OVERFLOWS(a, b, to) __builtin_mul_overflow((long long)(a), (long long)(b), (long long *)(to))
    """
    bint ADD_OVERFLOWS(int64_t a, int64_t b, int64_t* to) nogil
    bint SUB_OVERFLOWS(int64_t a, int64_t b, int64_t* to) nogil
    bint MUL_OVERFLOWS(int64_t a, int64_t b, int64_t* to) nogil

# Instructions, as in program.py.
cdef enum:
    TAKE, SPLIT, JUMP, LOOP, START, END, DONE

# Registers, as in conditions.py.
cdef enum:
    COUNT_ROWS, COUNT_VALUES, SUM_LONG, SUM_DOUBLE, SUM_LONG_AS_DOUBLE
    MIN_LONG, MIN_DOUBLE, MAX_LONG, MAX_DOUBLE, FIRST_VALUE, LAST_VALUE, EARLIER_VALUE
    FIRST_ROW, LAST_ROW

# Operations of conditions, as in conditions.py.
cdef enum:
    CONSTANT, NULL_CONSTANT, VALUE, REGISTER, TO_DOUBLE
    ADD_LONG, SUB_LONG, MUL_LONG, ADD_DOUBLE, SUB_DOUBLE, MUL_DOUBLE, DIV_DOUBLE
    NEG_LONG, NEG_DOUBLE, ABS_LONG, ABS_DOUBLE
    EQ_LONG, LT_LONG, LE_LONG, EQ_DOUBLE, LT_DOUBLE, LE_DOUBLE, SAME_LONG, SAME_DOUBLE
    AND, OR, NOT, IS_NULL, COALESCE

cdef enum:
    SKIP_PAST_LAST, SKIP_TO_NEXT, SKIP_TO_ROW

MATCH, UNMATCHED, TIMED_OUT, TOO_LONG = range(4)
cdef enum:
    EV_MATCH, EV_UNMATCHED, EV_TIMED_OUT, EV_TOO_LONG
# In place of the number of a value: what classifier() is for the row.
cdef enum:
    LABEL = -1

cdef enum:
    STATE_VERSION = 2
    THREADS_MAX = 2000
    STACK_MAX = 256
    OFFSET_MAX = 2147483647
EXCLUDED = 0x80

ctypedef struct Attempt:
    int64_t start
    int64_t start_us
    int64_t best_end
    int64_t end  # where it was given up
    int kind  # the event of an attempt that was given up, or -1
    bint is_first  # it begins with the first row of the key
    bint is_open  # it has threads, which are those of its group
    int64_t* best  # the registers of the best match so far; NULL if the program has none

# Attempts that have the same threads, and so the same future but for the end of their time.
ctypedef struct Group:
    int begin  # the places of its attempts; those between them that are closed do not count
    int end
    int open_count
    int count  # of threads
    int capacity
    int64_t* threads


cdef inline double as_double(int64_t bits) noexcept nogil:
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef inline int64_t as_bits(double value) noexcept nogil:
    cdef int64_t bits
    memcpy(&bits, &value, 8)
    return bits


cdef inline int compare_doubles(double a, double b) noexcept nogil:
    """Spark's order: NaN equals NaN, and is greater than all numbers."""
    if a != a:
        return 0 if b != b else 1
    if b != b:
        return -1
    return -1 if a < b else (1 if a > b else 0)


cdef void* resized(void* start, size_t size) noexcept:
    """As `realloc`; without memory, the process ends with a message instead of damaged matches."""
    cdef void* found = realloc(start, size)
    if found == NULL and size:
        Py_FatalError("no memory for the unfinished matches of a pattern")
    return found
