# The attempts of one key while its rows are scanned.

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
        self.attempts = <Attempt*>resized(NULL, sizeof(Attempt) * self.capacity)
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
        cdef bint is_first
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
            is_first = length & 1
            length >>= 1
            count = reader.number()
            if count < 0 or count > reader.left() or attempt_count > len(state):
                raise ValueError("the state of a pattern is too short")
            attempt = self.add(start, start_us)
            attempt.is_first = is_first
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
        cdef int64_t start = 0, start_us = 0, length
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
            length = 0 if attempt.best_end < 0 else attempt.best_end - attempt.start + 1
            writer.number(length << 1 | attempt.is_first)
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
            self.attempts = <Attempt*>resized(self.attempts, sizeof(Attempt) * self.capacity)
        attempt = &self.attempts[self.count]
        self.count += 1
        attempt.start = start
        attempt.start_us = start_us
        attempt.best_end = -1
        attempt.kind = -1
        attempt.is_first = False
        attempt.count = 0
        attempt.capacity = 4
        attempt.threads = <int64_t*>resized(NULL, 8 * self.machine.stride * attempt.capacity)
        attempt.best = <int64_t*>resized(NULL, 8 * self.machine.stride)
        memcpy(attempt.best, self.machine.fresh, 8 * self.machine.stride)
        return attempt

    cdef void set_count(self, Attempt* attempt, int count) noexcept:
        if count > attempt.capacity:
            attempt.capacity = count
            attempt.threads = <int64_t*>resized(
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
        attempt.is_first = self.is_new and self.next_number == self.first_number
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
                        self.key, EV_UNMATCHED, max(self.position, self.last_matched + 1), target,
                        0, 0
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
                self.events.append((
                    self.key, attempt.kind, attempt.start, attempt.end, 0, attempt.is_first
                ))
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
        self.events.append((
            self.key, EV_MATCH, attempt.start, attempt.best_end, self.match_count, attempt.is_first
        ))
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
