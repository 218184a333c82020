# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled machine that runs the program of a pattern (program.py) over sorted rows.

`scan` reads each row once. It keeps an attempt for every row at which a match may begin, and for
each attempt its threads in order of preference. A thread is a place in the program and the values
of registers, which are what conditions read of the match: `conditions.py` lists them. Threads at
one place with equal registers have the same future, so the less preferred one is dropped.

An attempt is decided when it has no thread left: by rows that none can take, by the end of its
time, or because the most preferred one is done. Attempts are resolved in the order of their
beginnings, since an earlier match decides where the next may begin. What is undecided is written as
bytes, and read again with the next rows of the key: nothing is scanned twice.

`label` runs the program over the rows of one match, and returns the variable of each row.

Bytes of a key: the version, then integers of variable length, 7 bits a byte, with their sign in the
lowest bit. Unfinished matches are many and alike, so numbers of rows and times are differences:

    next row, position, last matched row, number of matches, number of attempts
    of each attempt: first row and its time, as differences from the attempt before; the length of
                     the best match so far plus 1, or 0; number of threads
                     if there is a best match, its registers
                     of each thread: place, registers
    registers        nulls as bits; of each its value, 8 bytes little-endian
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

import numpy as np

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
cdef enum:
    STATE_VERSION = 1
    THREADS_MAX = 2000
    STACK_MAX = 256
EXCLUDED = 0x80

ctypedef struct Attempt:
    int64_t start
    int64_t start_us
    int64_t best_end
    int64_t end  # where it was given up
    int kind  # the event of an attempt that was given up, or -1
    int count
    int capacity
    int64_t* threads
    int64_t* best


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


cdef class Machine:
    """A compiled pattern. Every argument is a sequence of integers; see `matcher.py`."""

    cdef int size, variable_count, register_count, stride, value_count
    cdef int32_t* op
    cdef int32_t* x
    cdef int32_t* y
    cdef int32_t* condition_begin
    cdef int32_t* condition_end
    cdef int32_t* code
    cdef int64_t* operand
    cdef int32_t* register_kind
    cdef int64_t* register_variables
    cdef int32_t* register_value
    cdef int32_t* register_other
    cdef int32_t* register_depth
    cdef int64_t always, within, max_rows
    cdef int skip, skip_register
    cdef bint wants_unmatched, keeps_always, wants_time_outs
    # the threads of the next row
    cdef int next_count, next_capacity
    cdef int64_t* next_threads
    cdef int64_t* fresh  # registers of the thread that is being moved: place, nulls, history, values
    cdef int64_t generation
    cdef int64_t* marks
    cdef int32_t* stack
    # the result of a closure
    cdef bint is_done
    cdef int64_t* done
    # rows
    cdef const int64_t[::1] mask
    cdef const int64_t[::1] times
    cdef const int64_t[:, ::1] values
    cdef const uint8_t[:, ::1] nulls
    # history: the variables of the rows of a thread, as a tree
    cdef bint has_history
    cdef int64_t history_count, history_capacity
    cdef int64_t* history_parent
    cdef uint8_t* history_label
    cdef bint has_overflowed
    cdef bint at_first_row, at_end

    def __cinit__(self, instructions, int variable_count, conditions, code, registers,
                  int value_count, int64_t always, int64_t within, int64_t max_rows, int skip,
                  int skip_register, bint wants_unmatched, bint keeps_always, bint wants_time_outs):
        cdef int at
        self.size = len(instructions)
        self.variable_count = variable_count
        self.register_count = len(registers)
        self.value_count = value_count
        self.stride = 3 + self.register_count
        self.op = <int32_t*>malloc(4 * self.size)
        self.x = <int32_t*>malloc(4 * self.size)
        self.y = <int32_t*>malloc(4 * self.size)
        for at in range(self.size):
            self.op[at], self.x[at], self.y[at] = instructions[at]
        self.condition_begin = <int32_t*>malloc(4 * (variable_count + 1))
        self.condition_end = <int32_t*>malloc(4 * (variable_count + 1))
        for at in range(variable_count):
            self.condition_begin[at], self.condition_end[at] = conditions[at]
        self.code = <int32_t*>malloc(4 * (len(code) + 1))
        self.operand = <int64_t*>malloc(8 * (len(code) + 1))
        for at in range(len(code)):
            self.code[at], self.operand[at] = code[at]
        self.register_kind = <int32_t*>malloc(4 * (self.register_count + 1))
        self.register_variables = <int64_t*>malloc(8 * (self.register_count + 1))
        self.register_value = <int32_t*>malloc(4 * (self.register_count + 1))
        self.register_other = <int32_t*>malloc(4 * (self.register_count + 1))
        self.register_depth = <int32_t*>malloc(4 * (self.register_count + 1))
        for at in range(self.register_count):
            (self.register_kind[at], self.register_variables[at], self.register_value[at],
             self.register_other[at], self.register_depth[at]) = registers[at]
        self.always = always
        self.within = within
        self.max_rows = max_rows
        self.skip = skip
        self.skip_register = skip_register
        self.wants_unmatched = wants_unmatched
        self.keeps_always = keeps_always
        self.wants_time_outs = wants_time_outs
        self.next_capacity = 16
        self.next_threads = <int64_t*>malloc(8 * self.stride * self.next_capacity)
        self.fresh = <int64_t*>malloc(8 * self.stride)
        self.done = <int64_t*>malloc(8 * self.stride)
        self.marks = <int64_t*>malloc(8 * self.size)
        for at in range(self.size):
            self.marks[at] = -1
        self.stack = <int32_t*>malloc(4 * (2 * self.size + 2))
        self.history_capacity = 64
        self.history_parent = <int64_t*>malloc(8 * self.history_capacity)
        self.history_label = <uint8_t*>malloc(self.history_capacity)

    def __dealloc__(self):
        free(self.op); free(self.x); free(self.y)
        free(self.condition_begin); free(self.condition_end)
        free(self.code); free(self.operand)
        free(self.register_kind); free(self.register_variables)
        free(self.register_value); free(self.register_other); free(self.register_depth)
        free(self.next_threads); free(self.fresh); free(self.done)
        free(self.marks); free(self.stack)
        free(self.history_parent); free(self.history_label)

    # Conditions

    cdef bint holds(self, int variable, Py_ssize_t row, const int64_t* thread) noexcept:
        """Whether the condition of a variable is true; `thread` has the row already."""
        cdef int64_t stack[STACK_MAX]
        cdef bint is_null[STACK_MAX]
        cdef int top = 0
        cdef int at, code
        cdef int64_t operand
        cdef const int64_t* registers = thread + 3
        for at in range(self.condition_begin[variable], self.condition_end[variable]):
            code = self.code[at]
            operand = self.operand[at]
            if code == CONSTANT:
                stack[top] = operand; is_null[top] = False; top += 1
            elif code == NULL_CONSTANT:
                stack[top] = 0; is_null[top] = True; top += 1
            elif code == VALUE:
                stack[top] = self.values[operand, row]
                is_null[top] = self.nulls[operand, row] != 0
                top += 1
            elif code == REGISTER:
                stack[top] = registers[operand]
                is_null[top] = (thread[1] >> operand) & 1
                top += 1
            elif code == TO_DOUBLE:  # of the value that is `operand` below the top
                stack[top - 1 - operand] = as_bits(<double>stack[top - 1 - operand])
            elif code == NEG_LONG:
                if SUB_OVERFLOWS(0, stack[top - 1], &stack[top - 1]):
                    self.has_overflowed = not is_null[top - 1] or self.has_overflowed
            elif code == NEG_DOUBLE:
                stack[top - 1] = as_bits(-as_double(stack[top - 1]))
            elif code == ABS_LONG:
                if stack[top - 1] < 0 and SUB_OVERFLOWS(0, stack[top - 1], &stack[top - 1]):
                    self.has_overflowed = not is_null[top - 1] or self.has_overflowed
            elif code == ABS_DOUBLE:
                if as_double(stack[top - 1]) < 0:
                    stack[top - 1] = as_bits(-as_double(stack[top - 1]))
            elif code == NOT:
                stack[top - 1] = not stack[top - 1]
            elif code == IS_NULL:
                stack[top - 1] = is_null[top - 1]; is_null[top - 1] = False
            else:
                top -= 1
                self.combine(code, &stack[top - 1], &is_null[top - 1], stack[top], is_null[top])
        return stack[0] != 0 and not is_null[0]

    cdef inline void combine(self, int code, int64_t* a, bint* is_null, int64_t b,
                             bint b_is_null) noexcept:
        """a = a (code) b"""
        cdef bint overflows = False
        if code == AND:
            if (not is_null[0] and not a[0]) or (not b_is_null and not b):
                a[0] = 0; is_null[0] = False
            else:
                is_null[0] = is_null[0] or b_is_null
            return
        if code == OR:
            if (not is_null[0] and a[0]) or (not b_is_null and b):
                a[0] = 1; is_null[0] = False
            else:
                is_null[0] = is_null[0] or b_is_null
            return
        if code == COALESCE:
            if is_null[0]:
                a[0] = b; is_null[0] = b_is_null
            return
        if code == SAME_LONG or code == SAME_DOUBLE:
            if is_null[0] or b_is_null:
                a[0] = is_null[0] and b_is_null
            elif code == SAME_LONG:
                a[0] = a[0] == b
            else:
                a[0] = compare_doubles(as_double(a[0]), as_double(b)) == 0
            is_null[0] = False
            return
        if b_is_null:
            is_null[0] = True
        if is_null[0]:
            return
        if code == ADD_LONG: overflows = ADD_OVERFLOWS(a[0], b, a)
        elif code == SUB_LONG: overflows = SUB_OVERFLOWS(a[0], b, a)
        elif code == MUL_LONG: overflows = MUL_OVERFLOWS(a[0], b, a)
        elif code == ADD_DOUBLE: a[0] = as_bits(as_double(a[0]) + as_double(b))
        elif code == SUB_DOUBLE: a[0] = as_bits(as_double(a[0]) - as_double(b))
        elif code == MUL_DOUBLE: a[0] = as_bits(as_double(a[0]) * as_double(b))
        elif code == DIV_DOUBLE:
            if as_double(b) == 0:
                is_null[0] = True
            else:
                a[0] = as_bits(as_double(a[0]) / as_double(b))
        elif code == EQ_LONG: a[0] = a[0] == b
        elif code == LT_LONG: a[0] = a[0] < b
        elif code == LE_LONG: a[0] = a[0] <= b
        elif code == EQ_DOUBLE: a[0] = compare_doubles(as_double(a[0]), as_double(b)) == 0
        elif code == LT_DOUBLE: a[0] = compare_doubles(as_double(a[0]), as_double(b)) < 0
        elif code == LE_DOUBLE: a[0] = compare_doubles(as_double(a[0]), as_double(b)) <= 0
        if overflows:
            self.has_overflowed = True

    cdef void take_row(self, const int64_t* thread, int variable, Py_ssize_t row,
                       int64_t number) noexcept:
        """Put the registers of a thread that takes a row into `fresh`."""
        cdef int at, kind, column, other
        cdef int64_t nulls = thread[1]
        cdef int64_t value
        cdef bint is_null
        cdef const int64_t* old = thread + 3
        cdef int64_t* new = self.fresh + 3
        for at in range(self.register_count):
            new[at] = old[at]
            if not (self.register_variables[at] >> variable) & 1:
                continue
            kind = self.register_kind[at]
            if kind == COUNT_ROWS:
                new[at] = old[at] + 1
                continue
            if kind == FIRST_ROW:
                if (thread[1] >> at) & 1:
                    new[at] = number; nulls &= ~((<int64_t>1) << at)
                continue
            if kind == LAST_ROW:
                new[at] = number; nulls &= ~((<int64_t>1) << at)
                continue
            other = self.register_other[at]
            if kind == EARLIER_VALUE:
                new[at] = old[other]
                if (thread[1] >> other) & 1:
                    nulls |= (<int64_t>1) << at
                else:
                    nulls &= ~((<int64_t>1) << at)
                continue
            column = self.register_value[at]
            value = self.values[column, row]
            is_null = self.nulls[column, row] != 0
            if kind == LAST_VALUE:
                new[at] = value
                if is_null:
                    nulls |= (<int64_t>1) << at
                else:
                    nulls &= ~((<int64_t>1) << at)
                continue
            if kind == FIRST_VALUE:  # `other` counts the rows before
                if old[other] == self.register_depth[at]:
                    new[at] = value
                    if not is_null:
                        nulls &= ~((<int64_t>1) << at)
                continue
            if is_null:
                continue
            if kind == COUNT_VALUES:
                new[at] = old[at] + 1
                continue
            if (thread[1] >> at) & 1:
                new[at] = as_bits(<double>value) if kind == SUM_LONG_AS_DOUBLE else value
            elif kind == SUM_LONG:
                if ADD_OVERFLOWS(old[at], value, &new[at]):
                    self.has_overflowed = True
            elif kind == SUM_DOUBLE:
                new[at] = as_bits(as_double(old[at]) + as_double(value))
            elif kind == SUM_LONG_AS_DOUBLE:
                new[at] = as_bits(as_double(old[at]) + <double>value)
            elif kind == MIN_LONG:
                new[at] = min(old[at], value)
            elif kind == MAX_LONG:
                new[at] = max(old[at], value)
            elif kind == MIN_DOUBLE:
                if compare_doubles(as_double(value), as_double(old[at])) < 0:
                    new[at] = value
            elif kind == MAX_DOUBLE:
                if compare_doubles(as_double(value), as_double(old[at])) > 0:
                    new[at] = value
            nulls &= ~((<int64_t>1) << at)
        self.fresh[1] = nulls
        self.fresh[2] = thread[2]

    # Threads

    cdef void add_thread(self, int place) noexcept:
        """Add `fresh` at this place, unless a more preferred thread has the same future."""
        cdef int at
        cdef int64_t* thread
        if self.register_count:
            for at in range(self.next_count):
                thread = self.next_threads + at * self.stride
                if thread[0] == place and thread[1] == self.fresh[1] and not memcmp(
                    thread + 3, self.fresh + 3, 8 * self.register_count
                ):
                    return
        if self.next_count == self.next_capacity:
            self.next_capacity *= 2
            self.next_threads = <int64_t*>realloc(
                self.next_threads, 8 * self.stride * self.next_capacity
            )
        thread = self.next_threads + self.next_count * self.stride
        memcpy(thread, self.fresh, 8 * self.stride)
        thread[0] = place
        self.next_count += 1

    cdef void follow(self, int place) noexcept:
        """Follow `fresh` to all places at which it can take a row, in order of preference. It stops
        if the thread is done: whatever comes after it is less preferred."""
        cdef int depth = 1
        cdef int op
        self.stack[0] = place
        if self.register_count:
            self.generation += 1  # threads with other registers are others
        while depth:
            depth -= 1
            place = self.stack[depth]
            if self.marks[place] == self.generation:
                continue
            self.marks[place] = self.generation
            op = self.op[place]
            if op == TAKE:
                self.add_thread(place)
            elif op == SPLIT:
                self.stack[depth] = self.y[place]
                self.stack[depth + 1] = self.x[place]
                depth += 2
            elif op == JUMP:
                self.stack[depth] = self.x[place]
                depth += 1
            elif op == LOOP:  # an iteration without a row ends the loop
                if self.marks[self.x[place]] == self.generation:
                    self.stack[depth] = self.y[place]
                else:
                    self.stack[depth] = self.x[place]
                depth += 1
            elif op == START:
                if self.at_first_row:
                    self.stack[depth] = place + 1
                    depth += 1
            elif op == END:
                if self.at_end:
                    self.stack[depth] = place + 1
                    depth += 1
                else:
                    self.add_thread(place)
            else:
                self.is_done = True
                memcpy(self.done, self.fresh, 8 * self.stride)
                return

    cdef void begin(self) noexcept:
        """The threads before the first row of an attempt, in `next_threads`."""
        cdef int at
        self.next_count = 0
        self.is_done = False
        self.generation += 1
        self.fresh[1] = 0
        self.fresh[2] = -1
        for at in range(self.register_count):
            self.fresh[3 + at] = 0
            if self.register_kind[at] not in (COUNT_ROWS, COUNT_VALUES):
                self.fresh[1] |= (<int64_t>1) << at
        self.follow(0)

    cdef void step(self, const int64_t* threads, int count, Py_ssize_t row,
                   int64_t number) noexcept:
        """Move threads over a row, into `next_threads`."""
        cdef int at, place, variable
        cdef int64_t mask = self.mask[row] | self.always
        cdef const int64_t* thread
        self.next_count = 0
        self.is_done = False
        self.at_first_row = False
        self.generation += 1
        for at in range(count):
            thread = threads + at * self.stride
            place = <int>thread[0]
            if self.op[place] != TAKE:
                continue  # the end is expected, and here is a row
            variable = self.x[place]
            if not (mask >> variable) & 1:
                continue
            self.take_row(thread, variable, row, number)
            if self.condition_begin[variable] < self.condition_end[variable] and not self.holds(
                variable, row, self.fresh
            ):
                continue
            if self.has_history:
                self.remember(variable, self.y[place])
            self.follow(place + 1)
            if self.is_done or (self.register_count and self.next_count > THREADS_MAX):
                return

    cdef void finish(self, const int64_t* threads, int count) noexcept:
        """Move threads over the end of the rows."""
        cdef int at
        self.next_count = 0
        self.is_done = False
        self.at_end = True
        self.generation += 1
        for at in range(count):
            if self.op[threads[at * self.stride]] == END:
                memcpy(self.fresh, threads + at * self.stride, 8 * self.stride)
                self.follow(<int>threads[at * self.stride] + 1)
                if self.is_done:
                    break
        self.at_end = False

    cdef void remember(self, int variable, int is_excluded) noexcept:
        if self.history_count == self.history_capacity:
            self.history_capacity *= 2
            self.history_parent = <int64_t*>realloc(
                self.history_parent, 8 * self.history_capacity
            )
            self.history_label = <uint8_t*>realloc(self.history_label, self.history_capacity)
        self.history_parent[self.history_count] = self.fresh[2]
        self.history_label[self.history_count] = variable | (0x80 if is_excluded else 0)
        self.fresh[2] = self.history_count
        self.history_count += 1

    # Scanning

    def scan(self, bounds, mask, times, values, nulls, states, first_numbers, int64_t watermark_us,
             bint at_end):
        """Scan the new rows of each key: `bounds` are their ranges in the columns, `states` the
        bytes of each key or None, `first_numbers` the number of the first row of a key without.

        Returns events as rows of (key, kind, first row, end, number of the match); the bytes of
        each key, or None; for each key the first row that is undecided, the number of the next row,
        and the time of the first undecided row, or None.
        """
        cdef const int64_t[::1] edges = bounds
        cdef const int64_t[::1] firsts = first_numbers
        cdef Py_ssize_t key
        self.mask = mask
        self.times = times
        self.values = values
        self.nulls = nulls
        self.has_history = False
        self.has_overflowed = False
        cdef Scan scan = Scan(self)
        new_states = []
        undecided = np.empty(edges.shape[0] - 1, np.int64)
        cdef int64_t[::1] undecided_rows = undecided
        next_rows = np.empty(edges.shape[0] - 1, np.int64)
        cdef int64_t[::1] next_numbers = next_rows
        open_since = np.full(edges.shape[0] - 1, -(2**63), np.int64)
        cdef int64_t[::1] since = open_since
        try:
            for key in range(edges.shape[0] - 1):
                scan.load(key, states[key], firsts[key])
                scan.read(edges[key], edges[key + 1])
                scan.end(watermark_us, at_end)
                undecided_rows[key] = scan.position
                next_numbers[key] = scan.next_number
                if scan.count > scan.head:
                    since[key] = scan.attempts[scan.head].start_us
                new_states.append(scan.save())
        finally:
            scan.clear()
            self.forget_rows()
        if self.has_overflowed:
            raise OverflowError("a number in a condition of the pattern leaves 64 bits")
        return scan.events, new_states, undecided, next_rows, open_since

    def label(self, mask, times, values, nulls, starts, ends, kinds, is_first, is_last):
        """The variable of each row of these ranges, with `EXCLUDED`, one range after another.
        `is_first` are those that begin with the first row of a key, `is_last` those that end with
        the last row, after which none will come."""
        cdef const int64_t[::1] first = starts
        cdef const int64_t[::1] end = ends
        cdef const int64_t[::1] kind = kinds
        cdef const uint8_t[::1] begins_key = is_first
        cdef const uint8_t[::1] ends_key = is_last
        cdef Py_ssize_t at, row, total = 0
        cdef int64_t place, history
        cdef int64_t* threads = NULL
        cdef int count
        self.mask = mask
        self.times = times
        self.values = values
        self.nulls = nulls
        for at in range(first.shape[0]):
            total += end[at] - first[at]
        labels = np.empty(total, np.uint8)
        cdef uint8_t[::1] out = labels
        total = 0
        self.has_history = True
        for at in range(first.shape[0]):
            self.history_count = 0
            self.at_first_row = begins_key[at]
            self.begin()
            history = -1
            for row in range(first[at], end[at]):
                count = self.next_count
                threads = <int64_t*>realloc(threads, 8 * self.stride * (count + 1))
                memcpy(threads, self.next_threads, 8 * self.stride * count)
                self.step(threads, count, row, row)
            if kind[at] != EV_MATCH:
                history = self.next_threads[2] if self.next_count else -1
            else:
                if self.is_done:
                    history = self.done[2]
                if ends_key[at] and self.next_count:
                    count = self.next_count
                    threads = <int64_t*>realloc(threads, 8 * self.stride * (count + 1))
                    memcpy(threads, self.next_threads, 8 * self.stride * count)
                    self.finish(threads, count)
                    if self.is_done:
                        history = self.done[2]
            total += end[at] - first[at]
            place = total - 1
            while history >= 0:
                out[place] = self.history_label[history]
                history = self.history_parent[history]
                place -= 1
        free(threads)
        self.has_history = False
        self.forget_rows()
        return labels

    cdef forget_rows(self):
        self.mask = None
        self.times = None
        self.values = None
        self.nulls = None


cdef class Reader:
    """Reads the bytes of a key. Never trusts them: every read is checked against their end."""

    cdef const uint8_t[::1] data
    cdef Py_ssize_t at

    def __cinit__(self, state):
        self.data = state
        self.at = 1
        if not len(state) or self.data[0] != STATE_VERSION:
            raise ValueError("the state of a pattern is of another version")

    cdef Py_ssize_t left(self) noexcept:
        return self.data.shape[0] - self.at

    cdef int64_t number(self) except? -7:
        cdef uint64_t found = 0
        cdef int shift = 0
        cdef uint8_t byte = 0x80
        while byte & 0x80:
            if self.at >= self.data.shape[0] or shift > 63:
                raise ValueError("the state of a pattern is too short")
            byte = self.data[self.at]
            self.at += 1
            found |= <uint64_t>(byte & 0x7F) << shift
            shift += 7
        return <int64_t>(found >> 1) ^ -<int64_t>(found & 1)

    cdef words(self, int64_t* to, int count):
        if self.left() < 8 * count:
            raise ValueError("the state of a pattern is too short")
        memcpy(to, &self.data[self.at], 8 * count)
        self.at += 8 * count


cdef class Writer:
    """Writes the bytes of a key."""

    cdef uint8_t* data
    cdef Py_ssize_t size, capacity

    def __cinit__(self):
        self.capacity = 256
        self.data = <uint8_t*>malloc(self.capacity)

    def __dealloc__(self):
        free(self.data)

    cdef void begin(self) noexcept:
        self.data[0] = STATE_VERSION
        self.size = 1

    cdef void reserve(self, Py_ssize_t more) noexcept:
        if self.size + more > self.capacity:
            self.capacity = 2 * (self.size + more)
            self.data = <uint8_t*>realloc(self.data, self.capacity)

    cdef void number(self, int64_t value) noexcept:
        cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
        self.reserve(10)
        while rest >= 0x80:
            self.data[self.size] = <uint8_t>(rest & 0x7F) | 0x80
            self.size += 1
            rest >>= 7
        self.data[self.size] = <uint8_t>rest
        self.size += 1

    cdef void words(self, const int64_t* values, int count) noexcept:
        self.reserve(8 * count)
        memcpy(self.data + self.size, values, 8 * count)
        self.size += 8 * count

    cdef written(self):
        return PyBytes_FromStringAndSize(<char*>self.data, self.size)


def open_since(state):
    """The time of the first undecided row in the bytes of a key, or None if all are decided."""
    cdef Reader reader = Reader(state)
    cdef int at
    for at in range(4):
        reader.number()
    if not reader.number():
        return None
    reader.number()
    return reader.number()


cdef class Scan:
    """The state of one key during a scan."""

    cdef Machine machine
    cdef Attempt* attempts
    cdef int head, count, capacity
    cdef int64_t next_number, position, last_matched, match_count, first_number
    cdef Py_ssize_t key
    cdef list events
    cdef bint is_new
    cdef Writer writer

    def __cinit__(self, Machine machine):
        self.machine = machine
        self.capacity = 16
        self.attempts = <Attempt*>malloc(sizeof(Attempt) * self.capacity)
        self.events = []
        self.writer = Writer()

    def __dealloc__(self):
        self.clear()
        free(self.attempts)

    cdef void clear(self) noexcept:
        cdef int at
        for at in range(self.head, self.count):
            free(self.attempts[at].threads)
            free(self.attempts[at].best)
        self.head = self.count = 0

    cdef load(self, Py_ssize_t key, state, int64_t first_number):
        cdef int64_t attempt_count, at, thread, count, length, place
        cdef int64_t start = 0, start_us = 0
        cdef Attempt* attempt
        self.key = key
        self.is_new = state is None
        self.first_number = first_number
        if state is None:
            self.next_number = self.position = first_number
            self.last_matched = first_number - 1
            self.match_count = 0
            return
        cdef Reader reader = Reader(state)
        self.next_number = reader.number()
        self.position = self.next_number - reader.number()
        self.last_matched = self.next_number - reader.number()
        self.match_count = reader.number()
        attempt_count = reader.number()
        for at in range(attempt_count):
            start += reader.number()
            start_us += reader.number()
            length = reader.number()
            count = reader.number()
            if count < 0 or count > reader.left() or attempt_count > len(state):
                raise ValueError("the state of a pattern is too short")
            attempt = self.add(start, start_us)
            attempt.best_end = start + length - 1 if length else -1
            self.set_count(attempt, <int>count)
            if length:
                self.load_registers(reader, attempt.best)
            for thread in range(count):
                place = reader.number()
                if not 0 <= place < self.machine.size:
                    raise ValueError("the state of a pattern is of another program")
                attempt.threads[thread * self.machine.stride] = place
                self.load_registers(reader, attempt.threads + thread * self.machine.stride)

    cdef load_registers(self, Reader reader, int64_t* thread):
        thread[1] = 0
        thread[2] = -1
        if self.machine.register_count:
            thread[1] = reader.number()
            reader.words(thread + 3, self.machine.register_count)

    cdef save(self):
        """The bytes of the key, or None if nothing is undecided; forgets the key."""
        cdef int at, thread
        cdef int64_t start = 0, start_us = 0
        cdef Attempt* attempt
        cdef Writer writer = self.writer
        if self.head == self.count and not self.machine.keeps_always:
            return None
        writer.begin()
        writer.number(self.next_number)
        writer.number(self.next_number - self.position)
        writer.number(self.next_number - self.last_matched)
        writer.number(self.match_count)
        writer.number(self.count - self.head)
        for at in range(self.head, self.count):
            attempt = &self.attempts[at]
            writer.number(attempt.start - start)
            writer.number(attempt.start_us - start_us)
            writer.number(0 if attempt.best_end < 0 else attempt.best_end - attempt.start + 1)
            writer.number(attempt.count)
            start = attempt.start
            start_us = attempt.start_us
            if attempt.best_end >= 0:
                self.save_registers(attempt.best)
            for thread in range(attempt.count):
                writer.number(attempt.threads[thread * self.machine.stride])
                self.save_registers(attempt.threads + thread * self.machine.stride)
        self.clear()
        return writer.written()

    cdef void save_registers(self, const int64_t* thread) noexcept:
        if self.machine.register_count:
            self.writer.number(thread[1])
            self.writer.words(thread + 3, self.machine.register_count)

    cdef Attempt* add(self, int64_t start, int64_t start_us) noexcept:
        cdef Attempt* attempt
        if self.count == self.capacity:
            self.capacity *= 2
            self.attempts = <Attempt*>realloc(self.attempts, sizeof(Attempt) * self.capacity)
        attempt = &self.attempts[self.count]
        self.count += 1
        attempt.start = start
        attempt.start_us = start_us
        attempt.best_end = -1
        attempt.kind = -1
        attempt.count = 0
        attempt.capacity = 4
        attempt.threads = <int64_t*>malloc(8 * self.machine.stride * attempt.capacity)
        attempt.best = <int64_t*>malloc(8 * self.machine.stride)
        memcpy(attempt.best, self.machine.fresh, 8 * self.machine.stride)
        return attempt

    cdef void set_count(self, Attempt* attempt, int count) noexcept:
        if count > attempt.capacity:
            attempt.capacity = count
            attempt.threads = <int64_t*>realloc(
                attempt.threads, 8 * self.machine.stride * count
            )
        attempt.count = count

    cdef void store(self, Attempt* attempt, int64_t end) noexcept:
        """Take over the threads of the machine, and a match that is done at `end`."""
        cdef Machine machine = self.machine
        self.set_count(attempt, machine.next_count)
        memcpy(attempt.threads, machine.next_threads, 8 * machine.stride * machine.next_count)
        if machine.is_done:
            attempt.best_end = end
            memcpy(attempt.best, machine.done, 8 * machine.stride)

    cdef void give_up(self, Attempt* attempt, int kind) noexcept:
        """End an attempt; what it has matched so far counts."""
        if attempt.count:
            attempt.count = 0
            if attempt.best_end < 0:
                attempt.kind = kind
                attempt.end = self.next_number

    cdef read(self, Py_ssize_t begin, Py_ssize_t end):
        cdef Machine machine = self.machine
        cdef Py_ssize_t row
        cdef int at
        cdef int64_t time_us
        cdef Attempt* attempt
        for row in range(begin, end):
            time_us = machine.times[row]
            if self.count > self.head:
                for at in range(self.head, self.count):
                    attempt = &self.attempts[at]
                    if not attempt.count:
                        continue
                    if time_us - attempt.start_us >= machine.within:
                        self.give_up(attempt, EV_TIMED_OUT)
                    elif self.next_number - attempt.start >= machine.max_rows:
                        self.give_up(attempt, EV_TOO_LONG)
                    else:
                        machine.step(attempt.threads, attempt.count, row, self.next_number)
                        self.store(attempt, self.next_number + 1)
                        if machine.register_count and attempt.count > THREADS_MAX:
                            attempt.best_end = -1
                            self.give_up(attempt, EV_TOO_LONG)
                self.resolve(self.next_number)
            if self.next_number >= self.position:
                self.start(row, time_us)
            self.next_number += 1
            self.resolve(self.next_number)

    cdef void start(self, Py_ssize_t row, int64_t time_us) noexcept:
        """Begin an attempt at a row, if a thread can take it, or the match is empty."""
        cdef Machine machine = self.machine
        cdef Attempt* attempt
        cdef int at
        cdef int64_t mask = machine.mask[row] | machine.always
        cdef bint is_possible
        machine.at_first_row = self.is_new and self.next_number == self.first_number
        machine.begin()
        is_possible = machine.is_done
        for at in range(machine.next_count):
            if is_possible:
                break
            if machine.op[machine.next_threads[at * machine.stride]] == TAKE:
                is_possible = (
                    mask >> machine.x[machine.next_threads[at * machine.stride]]
                ) & 1
        if not is_possible:
            return
        attempt = self.add(self.next_number, time_us)
        self.store(attempt, self.next_number)
        machine.step(attempt.threads, attempt.count, row, self.next_number)
        self.store(attempt, self.next_number + 1)
        if not attempt.count and attempt.best_end < 0:
            self.count -= 1
            free(attempt.threads)
            free(attempt.best)

    cdef end(self, int64_t watermark_us, bint at_end):
        """End attempts whose time is over, or all at the end of the rows."""
        cdef Machine machine = self.machine
        cdef int at
        cdef Attempt* attempt
        for at in range(self.head, self.count):
            attempt = &self.attempts[at]
            if at_end and attempt.count:
                machine.finish(attempt.threads, attempt.count)
                if machine.is_done:
                    attempt.count = 0
                    attempt.best_end = self.next_number
                    memcpy(attempt.best, machine.done, 8 * machine.stride)
                else:
                    self.give_up(attempt, EV_TIMED_OUT)
            elif watermark_us + 1 - attempt.start_us >= machine.within:
                self.give_up(attempt, EV_TIMED_OUT)
        self.resolve(self.next_number)

    cdef resolve(self, int64_t limit):
        """Decide attempts in order, as far as the first one that is open; rows before `limit` were
        read."""
        cdef Machine machine = self.machine
        cdef Attempt* attempt
        cdef int64_t target
        while True:
            target = self.attempts[self.head].start if self.head < self.count else limit
            if self.position < target:
                if machine.wants_unmatched and self.last_matched + 1 < target:
                    self.events.append((
                        self.key, EV_UNMATCHED, max(self.position, self.last_matched + 1), target, 0
                    ))
                self.position = target
            if self.head == self.count or self.attempts[self.head].count:
                break
            attempt = &self.attempts[self.head]
            if attempt.best_end >= 0:
                self.match(attempt)
            elif attempt.kind == EV_TOO_LONG or (
                attempt.kind == EV_TIMED_OUT and machine.wants_time_outs
            ):
                self.events.append((self.key, attempt.kind, attempt.start, attempt.end, 0))
            free(attempt.threads)
            free(attempt.best)
            self.head += 1
            while self.head < self.count and self.attempts[self.head].start < self.position:
                free(self.attempts[self.head].threads)
                free(self.attempts[self.head].best)
                self.head += 1
        if self.head == self.count:
            self.head = self.count = 0

    cdef match(self, Attempt* attempt):
        cdef Machine machine = self.machine
        self.match_count += 1
        self.events.append(
            (self.key, EV_MATCH, attempt.start, attempt.best_end, self.match_count)
        )
        if attempt.best_end == attempt.start:
            self.position = attempt.start + 1
            return
        self.last_matched = max(self.last_matched, attempt.best_end - 1)
        if machine.skip == SKIP_PAST_LAST:
            self.position = attempt.best_end
        elif machine.skip == SKIP_TO_NEXT:
            self.position = attempt.start + 1
        elif (attempt.best[1] >> machine.skip_register) & 1:
            raise LookupError("absent")
        elif attempt.best[3 + machine.skip_register] == attempt.start:
            raise LookupError("first")
        else:
            self.position = attempt.best[3 + machine.skip_register]
