package sim

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/pem"

	"golang.org/x/crypto/ssh"
)

// GuestKey is the login key for all simulated guests, and its private half as ssh-keygen writes it. It is the same
// in every program, and not a secret: only simulated guests accept it.
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
