/* Senders of UDP, as programs in C write them.

   senders statsd HOST PORT PACKETS PER_SECOND SERIES
       one sample in each packet: counters, gauges and timings with changing values. PER_SECOND 0: as
       fast as possible. Prints the seconds that it took.
   senders mold HOST PORT INTERFACE SESSION FIRST LAST LOST
       messages FIRST to LAST of a session, two in each packet, to a multicast group or an address;
       each LOSTth packet is not sent (0: all are). A heartbeat at the end.
*/
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define BATCH 32

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int connected(const char *host, int port, const char *interface) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    inet_pton(AF_INET, host, &to.sin_addr);
    if (interface != NULL) {
        struct in_addr from;
        unsigned char ttl = 0, loop = 1;
        inet_pton(AF_INET, interface, &from);
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &from, sizeof from);
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, 1);
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, 1);
    }
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static int sample(char *room, long number, long series) {
    long name = number % series;
    switch (number % 4) {
    case 0: return sprintf(room, "requests.%ld:1|c|#env:prod,host:web", name);
    case 1: return sprintf(room, "latency.%ld:%ld.%ld|ms|#env:prod", name, number % 900, number % 10);
    case 2: return sprintf(room, "load.%ld:%ld|g", name, number % 100);
    default: return sprintf(room, "bytes.%ld:%ld|c|@0.5", name, number % 5000);
    }
}

static int statsd(char **given) {
    int fd = connected(given[0], atoi(given[1]), NULL);
    long packets = atol(given[2]), series = atol(given[4]), sent = 0;
    double rate = atof(given[3]), began = now();
    static char rooms[BATCH][128];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    while (sent < packets) {
        long due = rate > 0 ? (long)((now() - began) * rate) - sent : BATCH;
        int count = due > BATCH ? BATCH : (int)due, done = 0;
        if (count > packets - sent) count = (int)(packets - sent);
        if (count < BATCH && count < packets - sent) {
            struct timespec wait = {0, 50000};
            nanosleep(&wait, NULL);
            continue;
        }
        for (int i = 0; i < count; i++) {
            parts[i].iov_base = rooms[i];
            parts[i].iov_len = sample(rooms[i], sent + i, series);
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        while (done < count) {
            int more = sendmmsg(fd, messages + done, count - done, 0);
            if (more < 0) {
                perror("sendmmsg");
                return 1;
            }
            done += more;
        }
        sent += count;
    }
    printf("%f\n", now() - began);
    return 0;
}

static size_t header(unsigned char *packet, const char *session, uint64_t sequence, uint16_t count) {
    uint64_t number = htobe64(sequence);
    uint16_t many = htobe16(count);
    memset(packet, ' ', 10);
    memcpy(packet, session, strnlen(session, 10));
    memcpy(packet + 10, &number, 8);
    memcpy(packet + 18, &many, 2);
    return 20;
}

static int mold(char **given) {
    int fd = connected(given[0], atoi(given[1]), given[2]);
    uint64_t first = strtoull(given[4], NULL, 10), last = strtoull(given[5], NULL, 10);
    long lost = atol(given[6]), number = 0;
    unsigned char packet[256];
    for (uint64_t sequence = first; sequence <= last; sequence += 2) {
        uint16_t count = sequence < last ? 2 : 1;
        size_t at = header(packet, given[3], sequence, count);
        for (uint16_t i = 0; i < count; i++) {
            char text[64];
            uint16_t size = sprintf(text, "price %llu", (unsigned long long)(sequence + i));
            uint16_t big = htobe16(size);
            memcpy(packet + at, &big, 2);
            memcpy(packet + at + 2, text, size);
            at += 2 + size;
        }
        number++;
        if (lost && number % lost == 0) continue;
        send(fd, packet, at, 0);
    }
    send(fd, packet, header(packet, given[3], last + 1, 0), 0);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 7 && strcmp(argv[1], "statsd") == 0) return statsd(argv + 2);
    if (argc == 9 && strcmp(argv[1], "mold") == 0) return mold(argv + 2);
    fprintf(stderr, "see the head of senders.c\n");
    return 2;
}
