package keys

// This part of the package has the certificate of a server: a pair of files that somebody else keeps, or one
// that the server makes for itself.
//
// Clients do not ask an authority about a server, they pin its public key. So the key of the next
// certificate is made together with the present one and kept aside: a server announces the pins of
// both, and a client that has asked once since the last renewal accepts the next one.
//
// All that a server makes is one file, server.pem: certificate, key, and next key. It is replaced as a
// whole and under a lock, so neither a crash nor a second process leaves half of a pair.
