// kafkajs as a program: see tests/peers/programs.py for what it is asked.
const readline = require('node:readline')
const { Kafka, CompressionTypes, Partitioners, logLevel } = require('kafkajs')

const bytes = (text) => (text === null ? null : Buffer.from(text, 'base64'))
const text = (buffer) => (buffer == null ? null : Buffer.from(buffer).toString('base64'))
const say = (answer) => process.stdout.write(JSON.stringify(answer) + '\n')

function connect(command) {
  return new Kafka({
    clientId: 'kafkajs',
    brokers: [command.bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, retries: 8 },
  })
}

async function produce(command) {
  const producer = connect(command).producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    idempotent: command.idempotent,
  })
  await producer.connect()
  try {
    const positions = []
    for (const messages of batches(command.records)) {
      const [answer] = await producer.send({
        topic: command.topic,
        acks: command.acks === 'all' ? -1 : Number(command.acks),
        compression: { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }[command.compression],
        messages: messages.map(toMessage),
      })
      messages.forEach((_, index) => {
        if (answer) positions.push([answer.partition, Number(answer.baseOffset) + index])
      })
    }
    return { positions }
  } finally {
    await producer.disconnect()
  }
}

// kafkajs says where a batch begins, not where each record went: so one call per run of records
// of one partition, and one per record where the partitioner decides.
function batches(records) {
  const runs = []
  for (const record of records) {
    const last = runs.at(-1)
    if (last && record.partition !== null && last[0].partition === record.partition) last.push(record)
    else runs.push([record])
  }
  return runs
}

function toMessage(record) {
  const headers = {}
  for (const [name, value] of record.headers) headers[name] = bytes(value)
  return {
    key: bytes(record.key),
    value: bytes(record.value),
    headers,
    ...(record.partition !== null && { partition: record.partition }),
    ...(record.timestamp !== null && { timestamp: String(record.timestamp) }),
  }
}

function toRecord(partition, message) {
  return {
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: text(message.key),
    value: text(message.value),
    headers: Object.entries(message.headers ?? {}).map(([name, value]) => [name, text(value)]),
  }
}

async function transact(command) {
  const producer = connect(command).producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    idempotent: true,
    maxInFlightRequests: 1,
    transactionalId: command.transactional_id,
  })
  await producer.connect()
  try {
    for (const { commit, records } of command.transactions) {
      const transaction = await producer.transaction()
      await transaction.send({ topic: command.topic, acks: -1, messages: records.map(toMessage) })
      await (commit ? transaction.commit() : transaction.abort())
    }
    return { transactions: command.transactions.length }
  } finally {
    await producer.disconnect()
  }
}

async function consume(command) {
  const groupId = `kafkajs-${process.pid}-${Date.now()}-${Math.random()}`
  const consumer = connect(command).consumer({ groupId, maxWaitTimeInMs: 100 })
  await consumer.connect()
  try {
    await consumer.subscribe({ topic: command.topic, fromBeginning: true })
    const records = []
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`only ${records.length} records came`)), 100_000).unref()
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          records.push(toRecord(partition, message))
          if (records.length === command.count) resolve()
        },
      })
    })
    return { records }
  } finally {
    await consumer.disconnect()
  }
}

async function member(command, lines) {
  const consumer = connect(command).consumer({
    groupId: command.group,
    heartbeatInterval: 300,
    maxWaitTimeInMs: 100,
    ...command.config,
  })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    say({ assigned: payload.memberAssignment[command.topic] ?? [] })
  })
  await consumer.connect()
  await consumer.subscribe({ topic: command.topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) => say({ record: toRecord(partition, message) }),
  })
  for await (const _ of lines) continue
  await consumer.disconnect()
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  for await (const line of lines) {
    const command = JSON.parse(line)
    try {
      if (command.action === 'member') {
        say({ joined: true })
        return await member(command, lines)
      }
      say(await { produce, consume, transact }[command.action](command))
    } catch (error) {
      say({ error: String(error) })
    }
  }
}

main().then(() => process.exit(0))
