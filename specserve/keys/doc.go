package keys

// The certificate of a server: a pair of files that is maintained elsewhere, or one that the server creates.
//
// Clients pin the server's public key and trust no authority. So the key of the next certificate is created
// together with the current one: the server announces the pins of both, and a client that has connected since the
// last renewal accepts the next one.
//
// server.pem holds the certificate, its key and the next key. It is replaced as a whole and under a lock, so
// neither a crash nor a second process leaves half of a pair.
