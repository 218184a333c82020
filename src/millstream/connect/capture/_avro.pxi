# Values and envelopes in Avro, by the schemas that avro.py makes.
#
# A column is a union of null and its type; columns of the key have no null. Types that cannot hold
# everything that PostgreSQL can send (NaN in decimals, arrays of several dimensions, values that
# were not sent) have one more branch, string, in the wide schema. A row that needs it is written by
# that schema, all others by the narrow one, which is Debezium's.

cdef enum:
    NUMBER_BYTES_MAX = 10


cdef Status put_long(Out* out, int64_t value) noexcept nogil:
    """A zigzag varint."""
    cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    if not room(out, NUMBER_BYTES_MAX):
        return NO_MEMORY
    while rest > 0x7F:
        out.start[out.size] = <uint8_t>(rest | 0x80)
        out.size += 1
        rest >>= 7
    out.start[out.size] = <uint8_t>rest
    out.size += 1
    return DONE


cdef inline Status put_counted(Out* out, const void* bytes, int64_t size) noexcept nogil:
    """Bytes, or a string that is known to be UTF-8."""
    cdef Status status = put_long(out, size)
    return put(out, bytes, size) if status == DONE else status


cdef Status put_text(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    return put_counted(out, text, size) if is_utf8(text, size) else BAD_TEXT


cdef inline bint may_not_fit(Kind kind) noexcept nogil:
    return kind == ARRAY or kind == COMPOSITE or kind == DECIMAL or kind == VARIABLE_DECIMAL


cdef inline bint is_string(Kind kind) noexcept nogil:
    return (kind == TEXT or kind == TIME_ZONED or kind == TIMESTAMP_ZONED or kind == MONEY
            or kind == HSTORE_JSON)


cdef Status avro_field(Out* out, const Node* nodes, int index, const uint8_t* text, int64_t size,
                       Scratch* scratch, int depth, bint is_nullable):
    """A value with its branch."""
    cdef const Node* node = &nodes[index]
    cdef Status status
    cdef int branch = 1 if is_nullable else 0
    cdef bint is_text = False
    cdef const uint8_t* at
    if may_not_fit(node.kind):
        if node.kind == ARRAY:
            at = array_start(text, text + size)
            is_text = text + size - at > 1 and at[1] == c"{"
        elif node.kind != COMPOSITE:
            is_text = is_special(text, size)
        if is_text and not scratch.with_text:
            return NEEDS_TEXT
    if not is_nullable and not (scratch.with_text and may_not_fit(node.kind)):
        return avro_value(out, nodes, index, text, size, scratch, depth)
    status = put_long(out, branch + 1 if is_text else branch)
    if status != DONE:
        return status
    if not is_text:
        return avro_value(out, nodes, index, text, size, scratch, depth)
    if node.kind != ARRAY:
        return put_text(out, text, size)
    scratch.spare.size = 0
    status = json_value(&scratch.spare, nodes, index, text, size, scratch, depth)
    return put_text(out, scratch.spare.start, scratch.spare.size) if status == DONE else status


cdef Status avro_value(Out* out, const Node* nodes, int index, const uint8_t* text, int64_t size,
                       Scratch* scratch, int depth):
    cdef const Node* node = &nodes[index]
    cdef Kind kind = node.kind
    if kind == TEXT:
        return put_text(out, text, size)
    if kind == INTEGER:
        return avro_integer(out, text, size)
    if kind == TIMESTAMP_ZONED or kind == DATE or TIMESTAMP_MILLIS <= kind <= TIMESTAMP_MICROS:
        return avro_moment(out, node, text, size, &scratch.at_depth[depth])
    if kind == BOOLEAN:
        if size != 1 or text[0] not in b"t1f0":
            return BAD_BOOLEAN
        return put_byte(out, text[0] == c"t" or text[0] == c"1")
    if kind == FLOAT:
        return avro_float(out, node.is_wide, text, size)
    if depth >= DEPTH_MAX:
        return TOO_DEEP
    if kind == ARRAY:
        return avro_array(out, nodes, node, text, size, scratch, depth)
    if kind == COMPOSITE:
        return avro_composite(out, nodes, node, text, size, scratch, depth)
    return avro_rare(out, node, text, size, &scratch.at_depth[depth], scratch)


cdef Status avro_integer(Out* out, const uint8_t* text, int64_t size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int64_t i
    cdef bint is_negative
    if not is_integer(text, size):
        return BAD_NUMBER
    is_negative = text[0] == c"-"
    for i in range(1 if is_negative else 0, size):
        value = value * 10 + (text[i] - 48)
    return put_long(out, <int64_t>(0 - value if is_negative else value))


cdef Status avro_float(Out* out, bint is_wide, const uint8_t* text, int64_t size):
    cdef double wide
    cdef float narrow
    if not is_number(text, size) and not is_special(text, size):
        return BAD_NUMBER
    wide = float(<bytes>text[:size])
    if is_wide:
        return put(out, &wide, sizeof(double))
    narrow = <float>wide
    return put(out, &narrow, sizeof(float))


cdef Status avro_moment(Out* out, const Node* node, const uint8_t* text, int64_t size,
                        Out* scratch) noexcept nogil:
    """Infinities of dates and of timestamps without a zone are the ends of the range of numbers, as
    in PostgreSQL's own storage."""
    cdef int64_t largest = 0x7FFFFFFFFFFFFFFF, micros
    cdef Kind kind = node.kind
    cdef Moment moment
    cdef Status status = read_moment(text, size, kind != DATE, kind == TIMESTAMP_ZONED, &moment)
    if status != DONE:
        return status
    if kind == TIMESTAMP_ZONED:
        if moment.infinity:
            return put_counted(out, text, size)
        scratch.size = 0
        status = put_moment(scratch, &moment, node.scale, True)
        return put_counted(out, scratch.start, scratch.size) if status == DONE else status
    if kind == DATE:
        if moment.infinity:
            return put_long(out, 0x7FFFFFFF if moment.infinity > 0 else -<int64_t>0x7FFFFFFF - 1)
        return put_long(out, moment.days)
    if moment.infinity:
        return put_long(out, largest if moment.infinity > 0 else -largest - 1)
    if not micros_of(&moment, &micros):
        return put_long(out, largest - 1)
    return put_long(out, floor_divided(micros, 1000) if kind == TIMESTAMP_MILLIS else micros)


cdef Status avro_rare(Out* out, const Node* node, const uint8_t* text, int64_t size, Out* scratch,
                      Scratch* all_scratch):
    cdef const uint8_t* at = text
    cdef int64_t micros
    cdef double x = 0, y = 0
    cdef Status status
    cdef Kind kind = node.kind
    scratch.size = 0
    if kind == TIME_MILLIS or kind == TIME_MICROS:
        if not read_time(&at, text + size, &micros) or at != text + size:
            return BAD_TIME
        return put_long(out, micros // 1000 if kind == TIME_MILLIS else micros)
    if kind == HSTORE_MAP:
        return avro_hstore(out, text, size, scratch)
    if kind == DECIMAL or kind == VARIABLE_DECIMAL:
        return avro_decimal(out, node, text, size)
    if kind == POINT:
        status = read_point(text, size, &x, &y)
        if status != DONE:
            return status
        binary = WKB_POINT.pack(1, 1, x, y)
        put(out, &x, sizeof(double))
        put(out, &y, sizeof(double))
        put_long(out, 1)
        put_counted(out, <const char*>binary, len(binary))
        return put_long(out, 0)
    if kind == BYTES:
        status = read_hex(scratch, text, size)
    elif kind == BITS:
        status = read_bits(scratch, text, size)
    elif kind == TIME_ZONED:
        status = put_zoned_time(scratch, text, size)
    elif kind == MONEY:
        status = read_money(scratch, text, size)
    else:
        status = json_hstore(scratch, text, size, &all_scratch.at_depth[DEPTH_MAX])
    return put_counted(out, scratch.start, scratch.size) if status == DONE else status


cdef Status avro_decimal(Out* out, const Node* node, const uint8_t* text, int64_t size):
    if not is_number(text, size) or memchr(text, c"e", size) != NULL:
        return BAD_NUMBER
    unscaled, scale = unscale(<bytes>text[:size], node.scale if node.kind == DECIMAL else -1)
    if node.kind == VARIABLE_DECIMAL:
        put_long(out, scale)
    return put_counted(out, <const char*>unscaled, len(unscaled))


cdef Status avro_hstore(Out* out, const uint8_t* text, int64_t size, Out* scratch):
    """A map of texts or nulls. It is rare: through Python."""
    cdef Out quoted
    cdef Status status
    memset(&quoted, 0, sizeof(Out))
    status = json_hstore(scratch, text, size, &quoted)
    free(quoted.start)
    return put_map(out, <bytes>scratch.start[:scratch.size]) if status == DONE else status


cdef Status put_map(Out* out, bytes text):
    pairs = json.loads(text)
    if pairs:
        put_long(out, len(pairs))
    for key, value in pairs.items():
        name = key.encode()
        put_counted(out, <const char*>name, len(name))
        if value is None:
            put_long(out, 0)
        else:
            content = value.encode()
            put_long(out, 1)
            put_counted(out, <const char*>content, len(content))
    return put_long(out, 0)


cdef Status avro_array(Out* out, const Node* nodes, const Node* node, const uint8_t* text,
                       int64_t size, Scratch* scratch, int depth):
    """An array of one dimension: one block, for which the elements are counted first."""
    cdef const uint8_t* end = text + size
    cdef const uint8_t* first = array_start(text, end)
    cdef const uint8_t* at
    cdef const uint8_t* start = NULL
    cdef int64_t length = 0, count = 0
    cdef Status status = BAD_ARRAY
    cdef int pass_
    if not read_mark(&first, end, c"{"):
        return BAD_ARRAY
    if end - first == 1 and first[0] == c"}":
        return put_long(out, 0)
    for pass_ in range(2):
        at = first
        if pass_ == 1:
            status = put_long(out, count)
            if status != DONE:
                return status
        while True:
            if at >= end:
                return BAD_ARRAY
            status = BAD_ARRAY
            at = read_element(at, end, node.delimiter, &scratch.at_depth[depth], &status, &start,
                              &length)
            if at == NULL:
                return status
            if pass_ == 0:
                count += 1
            elif length < 0:
                status = put_long(out, 0)
            else:
                status = avro_field(out, nodes, node.first_item, start, length, scratch, depth + 1,
                                    True)
            if pass_ == 1 and status != DONE:
                return status
            if read_mark(&at, end, c"}"):
                break
            if not read_mark(&at, end, node.delimiter):
                return BAD_ARRAY
        if at != end:
            return BAD_ARRAY
    return put_long(out, 0)


cdef Status avro_composite(Out* out, const Node* nodes, const Node* node, const uint8_t* text,
                           int64_t size, Scratch* scratch, int depth):
    cdef const uint8_t* at = text
    cdef const uint8_t* end = text + size
    cdef int64_t length = 0
    cdef Status status
    cdef int i
    if not read_mark(&at, end, c"("):
        return BAD_COMPOSITE
    for i in range(node.items):
        if i and not read_mark(&at, end, c","):
            return OTHER_ATTRIBUTES
        status = BAD_COMPOSITE
        at = read_attribute(at, end, &scratch.at_depth[depth], &status, &length)
        if at == NULL:
            return status
        if length < 0:
            status = put_long(out, 0)
        else:
            status = avro_field(out, nodes, node.first_item + i, scratch.at_depth[depth].start,
                                length, scratch, depth + 1, True)
        if status != DONE:
            return status
    if not read_mark(&at, end, c")"):
        return OTHER_ATTRIBUTES
    return DONE if at == end else BAD_COMPOSITE


FIRST_BRANCH = 0


cdef bytes wire_prefix(int schema_id):
    return b"\0" + schema_id.to_bytes(4, "big")


cdef bytes avro_pieces(pieces):
    """Constant parts: texts, numbers, and None for null. A number or text in a tuple is in the
    second branch of a union."""
    cdef Out out
    memset(&out, 0, sizeof(Out))
    try:
        for piece in pieces:
            if isinstance(piece, tuple):
                put_long(&out, 1)
                (piece,) = piece
            if piece is None:
                put_long(&out, 0)
            elif isinstance(piece, int):
                put_long(&out, piece)
            else:
                text = piece.encode()
                put_counted(&out, <const char*>text, len(text))
        return <bytes>out.start[:out.size]
    finally:
        free(out.start)


cdef class AvroEnvelope(Envelope):
    """Debezium's envelope, or the flat form, as Avro in Confluent's wire format."""

    cdef bint is_flat
    cdef bint has_transaction
    cdef tuple head             # of the source: version, connector, name
    cdef object schema_id       # (is_key, is_wide) -> the id of the schema, which is registered
    cdef bytes key_prefix
    cdef bytes value_prefix
    cdef bytes wide_key_prefix  # None until the wide schema is needed
    cdef bytes wide_value_prefix
    cdef bytes placeholder
    cdef bytes to_sequence      # from the end of the rows to the text of `sequence`
    cdef bytes sequence_start   # up to the LSN of the event
    cdef bytes to_lsn           # from there to `lsn`
    cdef bytes to_orders        # from there to `total_order`, or to `op`
    cdef bytes times            # from `ts_ms` to the end
    cdef bytes snapshot_end     # from the end of the rows

    def __cinit__(self, table, settings, value_types, str version, str connector, schema_id):
        cdef int i
        self.is_flat = settings.shape == "flat"
        self.has_transaction = settings.transaction_metadata
        self.head = (version, connector, settings.server_name)
        self.placeholder = settings.unavailable_value.encode()
        self.schema_id = schema_id
        self.key_prefix = wire_prefix(schema_id(True, False)) if table.key else b""
        self.value_prefix = wire_prefix(schema_id(False, False))
        for i, column in enumerate(table.columns):
            self.nodes[i].is_required = column.name in table.key

    cdef int start_transaction(self, StreamContext context) except -1:
        cdef int64_t time_us = context.commit_time_us
        last = context.last_commit_lsn
        self.timestamp_ms = time_us // 1000
        if self.is_flat:
            return 0
        self.to_sequence = avro_pieces(
            (*self.head, time_us // 1000, FIRST_BRANCH, "false", self.settings.database)) + b"\2"
        self.sequence_start = b'[null,"' if last is None else b'["%d","' % last
        self.to_lsn = avro_pieces((
            (time_us,), (time_us * 1000,), self.table.schema, self.table.name, (context.xid,))) + (
            b"\2")
        transaction = (context.transaction_id,) if self.has_transaction else None
        self.to_orders = avro_pieces((None, None, None, transaction))
        self.times = avro_times(context.now_us)
        return 0

    cdef int start_snapshot(self, str flag, lsn, xid, int64_t snapshot_time_us,
                            int64_t now_us) except -1:
        self.timestamp_ms = snapshot_time_us // 1000
        if self.is_flat:
            return 0
        sequence = json_text([None, None if lsn is None else str(lsn)]).decode()
        self.snapshot_end = avro_pieces((
            *self.head, snapshot_time_us // 1000, FIRST_BRANCH, flag, self.settings.database, (sequence,),
            (snapshot_time_us,), (snapshot_time_us * 1000,), self.table.schema, self.table.name,
            None if xid is None else (xid,), None if lsn is None else (lsn,),
            None, None, None, None, "r")) + avro_times(now_us)
        return 0

    cdef Status put_key(self, Out* out, const Field* fields, const int* key_columns, int keys,
                        int* bad_column):
        cdef int64_t start = out.size
        cdef Status status = put_bytes(out, self.key_prefix)
        if status == DONE:
            status = self._put_key_columns(out, fields, key_columns, keys, bad_column)
        if status != NEEDS_TEXT:
            return status
        if self.wide_key_prefix is None:
            self.wide_key_prefix = wire_prefix(self.schema_id(True, True))
        out.size = start
        self.scratch.with_text = True
        try:
            status = put_bytes(out, self.wide_key_prefix)
            if status == DONE:
                status = self._put_key_columns(out, fields, key_columns, keys, bad_column)
        finally:
            self.scratch.with_text = False
        return status

    cdef Status _put_key_columns(self, Out* out, const Field* fields, const int* key_columns,
                                 int keys, int* bad_column):
        cdef Status status = DONE
        cdef const Field* field
        cdef int i
        for i in range(keys):
            if status != DONE:
                return status
            field = &fields[key_columns[i]]
            if field.kind == PRESENT:
                status = avro_field(out, self.nodes, key_columns[i], field.text, field.size,
                                    &self.scratch, 0, False)
            else:
                status = NULL_KEY if field.kind == IS_NULL else NO_KEY_VALUE
            if status != DONE:
                bad_column[0] = key_columns[i]
                self.bad_field = field
        return status

    cdef Status put(self, Out* out, uint8_t operation, const Field* before, const Field* after,
                    uint64_t lsn, int64_t total_order, int64_t order, int* bad_column):
        cdef int64_t start = out.size
        cdef Status status = self._put_event(out, operation, before, after, lsn, total_order, order,
                                             bad_column)
        if status != NEEDS_TEXT:
            return status
        out.size = start
        self._start_wide()
        try:
            return self._put_event(out, operation, before, after, lsn, total_order, order,
                                   bad_column)
        finally:
            self.scratch.with_text = False

    cdef int _start_wide(self) except -1:
        if self.wide_value_prefix is None:
            self.wide_value_prefix = wire_prefix(self.schema_id(False, True))
        self.scratch.with_text = True
        return 0

    cdef inline Status _put_prefix(self, Out* out):
        if self.scratch.with_text:
            return put_bytes(out, self.wide_value_prefix)
        return put_bytes(out, self.value_prefix)

    cdef Status _put_event(self, Out* out, uint8_t operation, const Field* before,
                           const Field* after, uint64_t lsn, int64_t total_order, int64_t order,
                           int* bad_column):
        cdef Status status = self._put_prefix(out)
        cdef int64_t digits
        if status != DONE:
            return status
        if self.is_flat:
            return self._put_flat(out, after if after != NULL else before, after == NULL,
                                  bad_column)
        status = self._put_row(out, before, True, bad_column)
        if status == DONE:
            status = self._put_row(out, after, True, bad_column)
        if status != DONE:
            return status
        self.scratch.spare.size = 0
        if (put_number(&self.scratch.spare, <int64_t>lsn) != DONE
                or put_bytes(out, self.to_sequence) != DONE):
            return NO_MEMORY
        digits = self.scratch.spare.size
        put_long(out, len(self.sequence_start) + digits + 2)
        put_bytes(out, self.sequence_start)
        put(out, self.scratch.spare.start, digits)
        put(out, b'"]', 2)
        if (put_bytes(out, self.to_lsn) != DONE or put_long(out, <int64_t>lsn) != DONE
                or put_bytes(out, self.to_orders) != DONE):
            return NO_MEMORY
        if self.has_transaction:
            put_long(out, total_order)
            put_long(out, order)
        put_long(out, 1)
        put_byte(out, operation)
        return put_bytes(out, self.times)

    cdef Status put_snapshot(self, Out* out, const Field* row, int* bad_column):
        cdef int64_t start = out.size
        cdef Status status = self._put_copied(out, row, bad_column)
        if status != NEEDS_TEXT:
            return status
        out.size = start
        self._start_wide()
        try:
            return self._put_copied(out, row, bad_column)
        finally:
            self.scratch.with_text = False

    cdef Status _put_copied(self, Out* out, const Field* row, int* bad_column):
        cdef Status status = self._put_prefix(out)
        if status != DONE:
            return status
        if self.is_flat:
            return self._put_flat(out, row, False, bad_column)
        status = put_long(out, 0)
        if status == DONE:
            status = self._put_row(out, row, True, bad_column)
        return put_bytes(out, self.snapshot_end) if status == DONE else status

    cdef Status _put_flat(self, Out* out, const Field* row, bint is_deleted, int* bad_column):
        cdef Status status = self._put_row(out, row, False, bad_column)
        if status != DONE:
            return status
        put_long(out, 1)
        return put_counted(out, b"true", 4) if is_deleted else put_counted(out, b"false", 5)

    cdef Status _put_row(self, Out* out, const Field* row, bint is_nullable, int* bad_column):
        cdef Status status
        cdef int i
        if row == NULL:
            return put_long(out, 0)
        status = put_long(out, 1) if is_nullable else DONE
        for i in range(self.columns):
            if status != DONE:
                return status
            if row[i].kind == PRESENT:
                status = avro_field(out, self.nodes, i, row[i].text, row[i].size, &self.scratch, 0,
                                    not self.nodes[i].is_required)
            elif row[i].kind == IS_NULL:
                status = NULL_KEY if self.nodes[i].is_required else put_long(out, 0)
            else:
                status = self.put_unavailable(out, i)
            if status != DONE:
                bad_column[0] = i
                self.bad_field = &row[i]
        return status

    cdef Status put_unavailable(self, Out* out, int column):
        """Types of fixed size are never stored apart, and cannot be unavailable."""
        cdef const Node* node = &self.nodes[column]
        cdef Kind kind = node.kind
        cdef int branch = 0 if node.is_required else 1
        if kind == HSTORE_MAP or kind == HSTORE_JSON:
            text = self.placeholder.decode()
            content = json_text({text: text})
            if branch:
                put_long(out, branch)
            if kind == HSTORE_MAP:
                return put_map(out, content)
            return put_counted(out, <const char*>content, len(content))
        if kind == ARRAY and not self.scratch.with_text:
            return self._put_unavailable_array(out, node)
        if may_not_fit(kind) and not self.scratch.with_text:
            return NEEDS_TEXT
        if kind != TEXT and kind != BYTES and kind != BITS and not may_not_fit(kind):
            return BAD_TUPLE
        if may_not_fit(kind):
            put_long(out, branch + 1)
        elif branch:
            put_long(out, branch)
        return put_counted(out, <const char*>self.placeholder, len(self.placeholder))

    cdef Status _put_unavailable_array(self, Out* out, const Node* node):
        """As in Debezium: the text as the only element, or its bytes as integers."""
        cdef Kind kind = self.nodes[node.first_item].kind
        if kind != INTEGER and not is_string(kind):
            return NEEDS_TEXT
        if not node.is_required:
            put_long(out, 1)
        items = list(self.placeholder) if kind == INTEGER else [self.placeholder.decode()]
        return put_bytes(out, avro_pieces((len(items), *((it,) for it in items), 0)))


cdef bytes avro_times(int64_t now_us):
    return avro_pieces(((now_us // 1000,), (now_us,), (now_us * 1000,)))
