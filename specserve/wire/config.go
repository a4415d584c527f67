package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ConfigVersion is the version of Config.
const ConfigVersion = 1

// Config is the answer to GET /config/{identity}: what a child of type pve needs to manage its
// subtree, beside the repository. Its ETag is made as that of Spec.
type Config struct {
	Version  int    `json:"version"`
	Identity string `json:"identity"`
	Commit   string `json:"commit"`           // that the parent works from
	Parent   string `json:"parent,omitempty"` // identity of the parent; "" for one without an agent
	Way      string `json:"way,omitempty"`    // what the child lives on, down to the parent: father/inner
	// Removed says that the child has left the site: it empties its subtree. Then there are no Defaults and
	// Secrets, and those that the child has stay.
	Removed  bool      `json:"leaving"`
	Defaults *Defaults `json:"defaults,omitempty"`
	// Secrets are all names that the site has, by section as in model.Secrets, with the values that the
	// subtree needs. Null: the name is known, and its value is for others.
	Secrets map[string]map[string]*string `json:"secrets,omitempty"`
	// PrivateKeys are names among the ssh_keys that are not for logins to nodes.
	PrivateKeys []string `json:"private_keys,omitempty"`

	Pins  []string          `json:"pins"`            // as in Spec
	Token string            `json:"token,omitempty"` // as in Spec
	Agent map[string]string `json:"agent,omitempty"` // as in Spec
}

// Defaults are those of the site.
type Defaults struct {
	Site      string   `json:"site"`
	Domain    string   `json:"domain"`
	Timezone  string   `json:"timezone"`
	DNS       []string `json:"dns"`
	Gateway   string   `json:"gateway"`
	Packages  []string `json:"packages"`
	Bridge    string   `json:"bridge"`
	VMUser    string   `json:"vm_user"`
	ServerURL string   `json:"server_url"`
}

// ReadConfig reads the answer for a child, and checks it. No error shows a value.
func ReadConfig(body []byte, identity string) (Config, []Pin, error) {
	var c Config
	if err := json.Unmarshal(body, &c); err != nil {
		return Config{}, nil, errors.New("the answer is not the JSON document of a configuration")
	}
	switch {
	case c.Version != ConfigVersion:
		return Config{}, nil, fmt.Errorf("the configuration has version %d, this program reads %d", c.Version, ConfigVersion)
	case c.Identity != identity:
		return Config{}, nil, fmt.Errorf("the answer is the configuration of %.80q, and %q was asked for", c.Identity, identity)
	case strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Config{}, nil, errors.New("the answer has a token that cannot be sent")
	}
	pins, err := ParsePins(c.Pins)
	if err != nil {
		return Config{}, nil, fmt.Errorf("the answer has no good pins: %w", err)
	}
	return c, pins, nil
}
