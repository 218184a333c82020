# The attempts of one key while its rows are scanned.
#
# An attempt may be open for as long as its time, while others begin at the rows after it. Most come
# to the same threads. Then they are one group, which is moved over a row once: the cost of a row
# does not grow with the number of open attempts, but for noting a match of each. Only neighbours
# become a group. With registers, which few attempts have in common, each is a group by itself.

cdef class Scan:
    """The state of one key during a scan."""

    cdef Machine machine
    cdef Attempt* attempts
    cdef int head, count, capacity
    cdef bint in_order  # of time: the first attempt is the first to end
    cdef Group* groups  # in the order of their attempts
    cdef int group_head, group_count, group_capacity
    cdef int64_t next_number, position, last_matched, match_count, first_number
    cdef Py_ssize_t key
    cdef bint is_new
    cdef Events events
    cdef Reader reader
    cdef Writer writer

    def __cinit__(self, Machine machine, Reader reader):
        self.machine = machine
        self.capacity = 16
        self.attempts = <Attempt*>resized(NULL, sizeof(Attempt) * self.capacity)
        self.events = Events()
        self.reader = reader
        self.writer = Writer()

    def __dealloc__(self):
        cdef int at
        self.clear()
        free(self.attempts)
        for at in range(self.group_capacity):
            free(self.groups[at].threads)
        free(self.groups)

    cdef void clear(self) noexcept:
        cdef int at
        for at in range(self.head, self.count):
            free(self.attempts[at].best)
        self.forget_attempts()

    cdef void forget_attempts(self) noexcept:
        self.head = self.count = 0
        self.group_head = self.group_count = 0
        self.in_order = True

    cdef load(self, Py_ssize_t key, int64_t first_number):
        cdef int64_t attempt_count, at, count, length
        cdef bint is_first
        cdef int64_t start = 0, start_us = 0
        cdef Attempt* attempt
        cdef Reader reader = self.reader
        self.key = key
        self.is_new = not reader.open(key)
        self.first_number = first_number
        if self.is_new:
            self.next_number = self.position = first_number
            self.last_matched = first_number - 1
            self.match_count = 0
            return
        self.next_number = reader.number()
        self.position = self.next_number - reader.number()
        self.last_matched = self.next_number - reader.number()
        self.match_count = reader.number()
        attempt_count = reader.number()
        if attempt_count > reader.left():
            raise ValueError("the state of a pattern is too short")
        for at in range(attempt_count):
            start += reader.number()
            start_us += reader.number()
            length = reader.number()
            is_first = length & 1
            length >>= 1
            count = reader.number()
            if not 0 <= count <= reader.left():
                raise ValueError("the state of a pattern is too short")
            attempt = self.add(start, start_us)
            attempt.is_first = is_first
            attempt.best_end = start + length - 1 if length else -1
            if length:
                self.load_registers(reader, attempt.best)
            if count:
                self.load_threads(reader, <int>count)

    cdef load_threads(self, Reader reader, int count):
        """Of the last attempt."""
        cdef Group* group = self.open_last()
        cdef int64_t place
        cdef int at
        reserve_threads(group, count, self.machine.stride)
        for at in range(count):
            place = reader.number()
            if not 0 <= place < self.machine.size:
                raise ValueError("the state of a pattern is of another program")
            group.threads[at * self.machine.stride] = place
            self.load_registers(reader, group.threads + at * self.machine.stride)
        group.count = count
        self.join_last()

    cdef load_registers(self, Reader reader, int64_t* thread):
        if thread != NULL:
            thread[1] = 0
            thread[2] = -1
        if self.machine.register_count:
            thread[1] = reader.number()
            reader.words(thread + 3, self.machine.register_count)

    cdef void save(self) noexcept:
        """Write the bytes of the key, or none if nothing is undecided; forget the key."""
        cdef int at, thread, count, group = 0
        cdef int64_t start = 0, start_us = 0, length
        cdef Attempt* attempt
        cdef const int64_t* threads = NULL
        cdef Writer writer = self.writer
        if self.head == self.count and not self.machine.keeps_always:
            return
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
            count = 0
            if attempt.is_open:
                group = self.group_of(at, group)
                count = self.groups[group].count
                threads = self.groups[group].threads
            writer.number(count)
            start = attempt.start
            start_us = attempt.start_us
            if attempt.best_end >= 0:
                self.save_registers(attempt.best)
            for thread in range(count):
                writer.number(threads[thread * self.machine.stride])
                self.save_registers(threads + thread * self.machine.stride)
        self.clear()

    cdef void save_registers(self, const int64_t* thread) noexcept:
        if self.machine.register_count:
            self.writer.number(thread[1])
            self.writer.words(thread + 3, self.machine.register_count)

    # Attempts and groups

    cdef Attempt* add(self, int64_t start, int64_t start_us) noexcept:
        """An attempt that is not open."""
        cdef Attempt* attempt
        if self.count == self.capacity:
            self.capacity *= 2
            self.attempts = <Attempt*>resized(self.attempts, sizeof(Attempt) * self.capacity)
        attempt = &self.attempts[self.count]
        if self.count > self.head and start_us < self.attempts[self.count - 1].start_us:
            self.in_order = False
        self.count += 1
        attempt.start = start
        attempt.start_us = start_us
        attempt.best_end = -1
        attempt.kind = -1
        attempt.is_first = False
        attempt.is_open = False
        attempt.best = NULL
        if self.machine.register_count:
            attempt.best = <int64_t*>resized(NULL, 8 * self.machine.stride)
            memcpy(attempt.best, self.machine.fresh, 8 * self.machine.stride)
        return attempt

    cdef Group* open_last(self) noexcept:
        """A group of the last attempt, without threads yet."""
        cdef Group* group
        cdef int at
        if self.group_count == self.group_capacity:
            self.group_capacity = 2 * self.group_capacity + 4
            self.groups = <Group*>resized(self.groups, sizeof(Group) * self.group_capacity)
            for at in range(self.group_count, self.group_capacity):
                self.groups[at].threads = NULL
                self.groups[at].capacity = 0
        group = &self.groups[self.group_count]
        self.group_count += 1
        group.begin = self.count - 1
        group.end = self.count
        group.open_count = 1
        group.count = 0
        self.attempts[self.count - 1].is_open = True
        return group

    cdef void join_last(self) noexcept:
        """Make the last group one with the group before it, if they have the same threads."""
        if self.group_count > 1 and self.join(
            &self.groups[self.group_count - 2], &self.groups[self.group_count - 1]
        ):
            self.group_count -= 1

    cdef bint join(self, Group* left, const Group* right) noexcept:
        if self.machine.register_count or left.count != right.count or memcmp(
            left.threads, right.threads, 8 * self.machine.stride * right.count
        ):
            return False
        left.end = right.end
        left.open_count += right.open_count
        return True

    cdef int group_of(self, int attempt, int group) noexcept:
        """The group of an open attempt, which is this one or comes after it."""
        while self.groups[group].end <= attempt:
            group += 1
        return group

    cdef void store(self, Group* group, int64_t end) noexcept:
        """Take over the threads of the machine, and a match that is done at `end`."""
        cdef Machine machine = self.machine
        cdef int at
        reserve_threads(group, machine.next_count, machine.stride)
        memcpy(group.threads, machine.next_threads, 8 * machine.stride * machine.next_count)
        group.count = machine.next_count
        if machine.is_done:
            for at in range(max(group.begin, self.head), group.end):
                if self.attempts[at].is_open:
                    self.note_match(&self.attempts[at], end)
        if group.count == 0:
            self.close(group)

    cdef void note_match(self, Attempt* attempt, int64_t end) noexcept:
        """A match of the machine is the best one so far."""
        attempt.best_end = end
        if attempt.best != NULL:
            memcpy(attempt.best, self.machine.done, 8 * self.machine.stride)

    cdef void close(self, Group* group) noexcept:
        """Its attempts have no thread left."""
        cdef int at
        for at in range(max(group.begin, self.head), group.end):
            self.attempts[at].is_open = False
        group.open_count = 0

    cdef void give_up(self, int at, Group* group, int kind) noexcept:
        """End an open attempt; what it has matched so far counts."""
        cdef Attempt* attempt = &self.attempts[at]
        attempt.is_open = False
        group.open_count -= 1
        if attempt.best_end < 0:
            attempt.kind = kind
            attempt.end = self.next_number

    # Rows

    cdef read(self, Py_ssize_t begin, Py_ssize_t end):
        cdef Py_ssize_t row
        cdef int64_t time_us
        for row in range(begin, end):
            time_us = self.machine.times[row]
            if self.count > self.head:
                self.expire(time_us, self.next_number)
                self.step(row)
                self.resolve(self.next_number)
            if self.next_number >= self.position:
                self.start(row, time_us)
            self.next_number += 1
            self.resolve(self.next_number)

    cdef void expire(self, int64_t time_us, int64_t number) noexcept:
        """Give up attempts that must not take the row with this time and number; with 0, those that
        are over by their time alone."""
        cdef int at, kind, group = 0
        cdef Attempt* attempt
        for at in range(self.head, self.count):
            attempt = &self.attempts[at]
            if not attempt.is_open:
                continue
            if time_us - attempt.start_us >= self.machine.within:
                kind = EV_TIMED_OUT
            elif number - attempt.start >= self.machine.max_rows:
                kind = EV_TOO_LONG
            elif self.in_order:
                break
            else:
                continue
            group = self.group_of(at, group)
            self.give_up(at, &self.groups[group], kind)

    cdef void step(self, Py_ssize_t row) noexcept:
        """Move all groups over a row, and join those that come to the same threads."""
        cdef Machine machine = self.machine
        cdef int at, kept = 0
        cdef Group* group
        cdef Group other
        for at in range(self.group_count):
            group = &self.groups[at]
            if group.open_count:
                machine.step(group.threads, group.count, row, self.next_number)
                self.store(group, self.next_number + 1)
                if machine.register_count and group.count > THREADS_MAX:
                    self.attempts[group.begin].best_end = -1
                    self.give_up(group.begin, group, EV_TOO_LONG)
            if not group.open_count or (kept and self.join(&self.groups[kept - 1], group)):
                continue
            other = self.groups[kept]  # its threads' memory is used again
            self.groups[kept] = group[0]
            group[0] = other
            kept += 1
        self.group_head = 0
        self.group_count = kept

    cdef void start(self, Py_ssize_t row, int64_t time_us) noexcept:
        """Begin an attempt at a row, if a thread can take it, or the match is empty."""
        cdef Machine machine = self.machine
        cdef Attempt* attempt
        cdef Group* group
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
        group = self.open_last()
        self.store(group, self.next_number)
        if group.open_count:
            machine.step(group.threads, group.count, row, self.next_number)
            self.store(group, self.next_number + 1)
        if group.open_count:
            self.join_last()
            return
        self.group_count -= 1
        if attempt.best_end < 0:
            self.count -= 1
            free(attempt.best)

    cdef end(self, int64_t watermark_us, bint at_end):
        """End attempts whose time is over, or all at the end of the rows."""
        cdef Machine machine = self.machine
        cdef int at, place
        cdef Group* group
        if not at_end:
            self.expire(watermark_us + 1, 0)
        for at in range(self.group_count if at_end else 0):
            group = &self.groups[at]
            machine.finish(group.threads, group.count)
            for place in range(max(group.begin, self.head), group.end):
                if not self.attempts[place].is_open:
                    continue
                if machine.is_done:
                    self.note_match(&self.attempts[place], self.next_number)
                self.give_up(place, group, EV_TIMED_OUT)
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
                    self.events.add(
                        self.key, EV_UNMATCHED, max(self.position, self.last_matched + 1), target,
                        0, False
                    )
                self.position = target
            if self.head == self.count or self.attempts[self.head].is_open:
                break
            attempt = &self.attempts[self.head]
            if attempt.best_end >= 0:
                self.match(attempt)
            elif attempt.kind == EV_TOO_LONG or (
                attempt.kind == EV_TIMED_OUT and machine.wants_time_outs
            ):
                self.events.add(
                    self.key, attempt.kind, attempt.start, attempt.end, 0, attempt.is_first
                )
            self.drop()
            while self.head < self.count and self.attempts[self.head].start < self.position:
                self.drop()
        if self.head == self.count:
            self.forget_attempts()

    cdef void drop(self) noexcept:
        """Forget the first attempt."""
        if self.attempts[self.head].is_open:
            self.group_head = self.group_of(self.head, self.group_head)
            self.groups[self.group_head].open_count -= 1
        free(self.attempts[self.head].best)
        self.head += 1

    cdef match(self, Attempt* attempt):
        cdef Machine machine = self.machine
        self.match_count += 1
        self.events.add(
            self.key, EV_MATCH, attempt.start, attempt.best_end, self.match_count, attempt.is_first
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


cdef class Events:
    """What a scan finds, in rows of six numbers."""

    cdef int64_t* data
    cdef Py_ssize_t count, capacity

    def __cinit__(self):
        self.capacity = 256
        self.data = <int64_t*>resized(NULL, 48 * self.capacity)

    def __dealloc__(self):
        free(self.data)

    cdef void add(self, Py_ssize_t key, int kind, int64_t first, int64_t end, int64_t number,
                  bint is_first) noexcept:
        cdef int64_t* event
        if self.count == self.capacity:
            self.capacity *= 2
            self.data = <int64_t*>resized(self.data, 48 * self.capacity)
        event = self.data + 6 * self.count
        event[0], event[1], event[2] = key, kind, first
        event[3], event[4], event[5] = end, number, is_first
        self.count += 1

    cdef taken(self):
        found = np.empty((self.count, 6), np.int64)
        cdef int64_t[:, ::1] rows = found
        memcpy(&rows[0, 0], self.data, 48 * self.count)
        return found


cdef void reserve_threads(Group* group, int count, int stride) noexcept:
    if count > group.capacity:
        group.capacity = count
        group.threads = <int64_t*>resized(group.threads, 8 * stride * count)
