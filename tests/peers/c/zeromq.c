/* ZeroMQ's own library, as programs in C use it. Messages have two frames, key and value.

   zeromq push ADDRESS NUMBER       sends NUMBER messages
   zeromq pull ADDRESS NUMBER       prints as many
   zeromq pub ADDRESS NUMBER        waits for a subscription, then sends
   zeromq sub ADDRESS NUMBER PREFIX prints messages whose first frame begins so

   All but pub connect; pub binds, and prints its address. Nothing waits for more than two minutes.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

static const int patience_ms = 120000;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
    exit(1);
}

static void *opened(void *context, int type, const char *address) {
    void *socket = zmq_socket(context, type);
    int no_limit = 0; /* a PUB socket drops beyond its limit */
    if (socket == NULL) fail("socket");
    zmq_setsockopt(socket, ZMQ_LINGER, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &no_limit, sizeof no_limit);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &no_limit, sizeof no_limit);
    if (type == ZMQ_XPUB) {
        char bound[256];
        size_t size = sizeof bound;
        if (zmq_bind(socket, address) != 0) fail("bind");
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size);
        printf("%s\n", bound);
        fflush(stdout);
    } else if (zmq_connect(socket, address) != 0) {
        fail("connect");
    }
    return socket;
}

static void send_all(void *socket, int number) {
    char key[16], value[32];
    for (int i = 0; i < number; i++) {
        int key_size = snprintf(key, sizeof key, "k%d", i % 3);
        int value_size = snprintf(value, sizeof value, "value %d", i);
        if (zmq_send(socket, key, key_size, ZMQ_SNDMORE) < 0) fail("send");
        if (zmq_send(socket, value, value_size, 0) < 0) fail("send");
    }
}

static void print_all(void *socket, int number) {
    char frame[1024];
    for (int i = 0; i < number; i++) {
        int more = 1;
        size_t size = sizeof more;
        while (more) {
            int received = zmq_recv(socket, frame, sizeof frame, 0);
            if (received < 0) fail("receive");
            zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
            printf("%.*s%c", received, frame, more ? ' ' : '\n');
        }
    }
}

int main(int count, char **given) {
    if (count < 4) {
        fprintf(stderr, "see the head of zeromq.c\n");
        return 2;
    }
    const char *what = given[1], *address = given[2];
    int number = atoi(given[3]);
    void *context = zmq_ctx_new(), *socket;
    if (strcmp(what, "push") == 0) {
        send_all(socket = opened(context, ZMQ_PUSH, address), number);
    } else if (strcmp(what, "pull") == 0) {
        print_all(socket = opened(context, ZMQ_PULL, address), number);
    } else if (strcmp(what, "pub") == 0) {
        char subscription[256];
        socket = opened(context, ZMQ_XPUB, address); /* a PUB socket that sees its subscriptions */
        if (zmq_recv(socket, subscription, sizeof subscription, 0) < 0) fail("no subscription");
        send_all(socket, number);
    } else {
        socket = opened(context, ZMQ_SUB, address);
        if (zmq_setsockopt(socket, ZMQ_SUBSCRIBE, given[4], strlen(given[4])) != 0) fail("subscribe");
        print_all(socket, number);
    }
    zmq_close(socket);
    zmq_ctx_term(context); /* waits for what is being sent */
    return 0;
}
