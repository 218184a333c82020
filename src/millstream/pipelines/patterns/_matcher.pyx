# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled machine that runs the program of a pattern (program.py) over sorted rows.

`scan` reads each row once. It keeps an attempt for every row at which a match may begin, and for
each group of attempts (`_scan.pxi`) their threads in order of preference. A thread is a place in the
program and the values of registers, which are what conditions read of the match: `conditions.py`
lists them. Threads at one place with equal registers have the same future, so the less preferred
one is dropped.

An attempt is decided when it has no thread left: by rows that none can take, by the end of its
time, or because the most preferred one is done. Attempts are resolved in the order of their
beginnings, since an earlier match decides where the next may begin. What is undecided is written as
bytes, and read again with the next rows of the key: nothing is scanned twice.

`label` runs the program over the rows of one match, and returns the variable of each row.

Bytes of a key: the version, then integers of variable length, 7 bits a byte, with their sign in the
lowest bit. Unfinished matches are many and alike, so numbers of rows and times are differences:

    next row, position, last matched row, number of matches, number of attempts
    of each attempt: first row and its time, as differences from the attempt before; the length of
                     the best match so far plus 1, or 0, times 2, plus 1 if it begins with the first
                     row of the key; number of threads
                     if there is a best match, its registers
                     of each thread: place, registers
    registers        nulls as bits; of each its value, 8 bytes little-endian
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

import numpy as np

cdef extern from "Python.h":
    void Py_FatalError(const char* message) noexcept

include "_instructions.pxi"


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
    cdef int64_t* labels  # of each variable, what classifier() is, as a value
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

    def __cinit__(self, instructions, labels, conditions, code, registers, int value_count,
                  int64_t always, int64_t within, int64_t max_rows, int skip,
                  int skip_register, bint wants_unmatched, bint keeps_always, bint wants_time_outs):
        cdef int at
        cdef int variable_count = len(labels)
        self.size = len(instructions)
        self.variable_count = variable_count
        self.register_count = len(registers)
        self.value_count = value_count
        self.stride = 3 + self.register_count
        self.op = <int32_t*>resized(NULL, 4 * self.size)
        self.x = <int32_t*>resized(NULL, 4 * self.size)
        self.y = <int32_t*>resized(NULL, 4 * self.size)
        for at in range(self.size):
            self.op[at], self.x[at], self.y[at] = instructions[at]
        self.condition_begin = <int32_t*>resized(NULL, 4 * (variable_count + 1))
        self.condition_end = <int32_t*>resized(NULL, 4 * (variable_count + 1))
        self.labels = <int64_t*>resized(NULL, 8 * (variable_count + 1))
        for at in range(variable_count):
            self.labels[at] = labels[at]
            self.condition_begin[at], self.condition_end[at] = conditions[at]
        self.code = <int32_t*>resized(NULL, 4 * (len(code) + 1))
        self.operand = <int64_t*>resized(NULL, 8 * (len(code) + 1))
        for at in range(len(code)):
            self.code[at], self.operand[at] = code[at]
        self.register_kind = <int32_t*>resized(NULL, 4 * (self.register_count + 1))
        self.register_variables = <int64_t*>resized(NULL, 8 * (self.register_count + 1))
        self.register_value = <int32_t*>resized(NULL, 4 * (self.register_count + 1))
        self.register_other = <int32_t*>resized(NULL, 4 * (self.register_count + 1))
        self.register_depth = <int32_t*>resized(NULL, 4 * (self.register_count + 1))
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
        self.next_threads = <int64_t*>resized(NULL, 8 * self.stride * self.next_capacity)
        self.fresh = <int64_t*>resized(NULL, 8 * self.stride)
        self.done = <int64_t*>resized(NULL, 8 * self.stride)
        self.marks = <int64_t*>resized(NULL, 8 * self.size)
        for at in range(self.size):
            self.marks[at] = -1
        self.stack = <int32_t*>resized(NULL, 4 * (2 * self.size + 2))
        self.history_capacity = 64
        self.history_parent = <int64_t*>resized(NULL, 8 * self.history_capacity)
        self.history_label = <uint8_t*>resized(NULL, self.history_capacity)

    def __dealloc__(self):
        free(self.op); free(self.x); free(self.y)
        free(self.condition_begin); free(self.condition_end)
        free(self.code); free(self.operand); free(self.labels)
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
            if column == LABEL:
                value = self.labels[variable]
                is_null = False
            else:
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
            self.next_threads = <int64_t*>resized(
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
            self.history_parent = <int64_t*>resized(
                self.history_parent, 8 * self.history_capacity
            )
            self.history_label = <uint8_t*>resized(self.history_label, self.history_capacity)
        self.history_parent[self.history_count] = self.fresh[2]
        self.history_label[self.history_count] = variable | (0x80 if is_excluded else 0)
        self.fresh[2] = self.history_count
        self.history_count += 1

    # Scanning

    def scan(self, bounds, mask, times, values, nulls, state_data, state_bounds, first_numbers,
             int64_t watermark_us, bint at_end):
        """Scan the new rows of each key: `bounds` are their ranges in the columns, `state_bounds`
        those of the bytes of keys, `first_numbers` the number of the first row of a key without.

        Returns events as rows of (key, kind, first row, end, number of the match, whether it begins
        with the first row of the key); the bytes of all keys and their bounds; for each key the
        first row that is undecided, the number of the next row, and the time of the first undecided
        row.
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
        cdef Scan scan = Scan(self, Reader(state_data, state_bounds))
        new_bounds = np.zeros(edges.shape[0], np.int32)
        cdef int32_t[::1] written = new_bounds
        undecided = np.empty(edges.shape[0] - 1, np.int64)
        cdef int64_t[::1] undecided_rows = undecided
        next_rows = np.empty(edges.shape[0] - 1, np.int64)
        cdef int64_t[::1] next_numbers = next_rows
        open_since = np.full(edges.shape[0] - 1, -(2**63), np.int64)
        cdef int64_t[::1] since = open_since
        try:
            for key in range(edges.shape[0] - 1):
                scan.load(key, firsts[key])
                scan.read(edges[key], edges[key + 1])
                scan.end(watermark_us, at_end)
                undecided_rows[key] = scan.position
                next_numbers[key] = scan.next_number
                if scan.count > scan.head:
                    since[key] = scan.attempts[scan.head].start_us
                scan.save()
                written[key + 1] = scan.writer.written()
        finally:
            scan.clear()
            self.forget_rows()
        if self.has_overflowed:
            raise OverflowError("a number in a condition of the pattern leaves 64 bits")
        return (
            scan.events.taken(), scan.writer.taken(), new_bounds, undecided, next_rows, open_since
        )

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
                threads = <int64_t*>resized(threads, 8 * self.stride * (count + 1))
                memcpy(threads, self.next_threads, 8 * self.stride * count)
                self.step(threads, count, row, row)
            if kind[at] != EV_MATCH:
                history = self.next_threads[2] if self.next_count else -1
            else:
                if self.is_done:
                    history = self.done[2]
                if ends_key[at] and self.next_count:
                    count = self.next_count
                    threads = <int64_t*>resized(threads, 8 * self.stride * (count + 1))
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


include "_state_bytes.pxi"
include "_scan.pxi"
