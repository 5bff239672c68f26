/* Sends a message to the card's task "echo", and waits for its return. */
#include "picnic_channel.h"

int main(int count, char **words)
{
    struct picnic_channel *channel = count == 2 ? picnic_channel_open(words[1], "echo") : NULL;
    char message[64];
    if (!channel)
        return fprintf(stderr, "cannot open the channel: %s\n", picnic_channel_error()), 1;
    if (picnic_channel_send(channel, "hello, card", 11) != 0)
        return 1;
    long bytes;
    while ((bytes = picnic_channel_receive(channel, message, sizeof message)) == -EAGAIN)
        if (picnic_channel_wait(channel, PICNIC_MESSAGE, 60000) == -ETIMEDOUT)
            return 1;
    if (bytes < 0)
        return 1;
    printf("%.*s\n", (int)bytes, message);
    picnic_channel_close(channel);
    return 0;
}
