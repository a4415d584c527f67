package sim

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/pem"

	"golang.org/x/crypto/ssh"
)

// GuestKey is by which whoever runs a simulation logs in to its guests, and its private half as ssh-keygen
// writes it. It is the same in every program, and no secret: only simulated guests let it in.
func GuestKey() (public ssh.PublicKey, private string, err error) {
	seed := sha256.Sum256([]byte("homestak-gitops: key of simulated sites"))
	key := ed25519.NewKeyFromSeed(seed[:])
	block, err := ssh.MarshalPrivateKey(key, "simulated site")
	if err != nil {
		return nil, "", err
	}
	public, err = ssh.NewPublicKey(key.Public())
	return public, string(pem.EncodeToMemory(block)), err
}
