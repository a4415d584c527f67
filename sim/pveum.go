package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// command is a command of pveum(1) or pvesm(1): its API request. Positional arguments are the parameters, in their order.
type command struct {
	words      string
	method     string
	path       string // with {name} for parameters
	parameters []string
	fixed      string // a parameter that is always 1
}

func commands(program string) []command {
	const role, token = "/access/roles/{roleid}", "/access/users/{userid}/token/{tokenid}"
	if program == "pvesm" {
		return []command{{"set", http.MethodPut, "/storage/{storage}", []string{"storage"}, ""}}
	}
	return []command{
		{"role add", http.MethodPost, "/access/roles", []string{"roleid"}, ""},
		{"role modify", http.MethodPut, role, []string{"roleid"}, ""},
		{"role delete", http.MethodDelete, role, []string{"roleid"}, ""},
		{"role list", http.MethodGet, "/access/roles", nil, ""},
		{"user add", http.MethodPost, "/access/users", []string{"userid"}, ""},
		{"user modify", http.MethodPut, "/access/users/{userid}", []string{"userid"}, ""},
		{"user delete", http.MethodDelete, "/access/users/{userid}", []string{"userid"}, ""},
		{"user list", http.MethodGet, "/access/users", nil, ""},
		{"acl modify", http.MethodPut, "/access/acl", []string{"path"}, ""},
		{"acl delete", http.MethodPut, "/access/acl", []string{"path"}, "delete"},
		{"acl list", http.MethodGet, "/access/acl", nil, ""},
		{"user token add", http.MethodPost, token, []string{"userid", "tokenid"}, ""},
		{"user token modify", http.MethodPut, token, []string{"userid", "tokenid"}, ""},
		{"user token remove", http.MethodDelete, token, []string{"userid", "tokenid"}, ""},
		{"user token list", http.MethodGet, "/access/users/{userid}/token", []string{"userid"}, ""},
	}
}

// pveumFailed is the exit code of a command that failed.
const pveumFailed = 255

// pveum is the program that manages the users of a host, by the API of that.
func (h *hypervisor) pveum(p *machine.Process) int {
	if p.Cred.UID != 0 {
		fmt.Fprintln(p.Err(), "please run as root")
		return pveumFailed
	}
	out, err := Command(h.host, h.host.Token(), append([]string{"pveum"}, p.Args[1:]...))
	if err != nil {
		fmt.Fprintln(p.Err(), err)
		return pveumFailed
	}
	p.Printf("%s", out)
	return 0
}

// Command is a program of a host that root runs: pveum, pvesm set or pvesh get. It asks an API by a token of root, and
// returns what it prints.
func Command(api http.RoundTripper, token string, argv []string) (string, error) {
	program := argv[0]
	var words []string
	form, values := "text", url.Values{}
	for args := argv[1:]; len(args) > 0; args = args[1:] {
		name, isOption := strings.CutPrefix(strings.Replace(args[0], "--", "-", 1), "-")
		value, given := "", false
		if name, value, given = strings.Cut(name, "="); !isOption {
			words = append(words, args[0])
			continue
		}
		switch {
		case given:
		case len(args) > 1 && !strings.HasPrefix(args[1], "-"):
			value, args = args[1], args[1:]
		default:
			value = "1"
		}
		if name == "output-format" {
			form = value
		} else {
			values.Set(name, value)
		}
	}
	all := commands(program)
	if program == "pvesh" && len(words) == 2 {
		all = []command{{"get", http.MethodGet, words[1], nil, ""}}
		words = words[:1]
	}
	i := slices.IndexFunc(all, func(c command) bool {
		return strings.HasPrefix(strings.Join(words, " ")+" ", c.words+" ")
	})
	if i < 0 {
		return "", fmt.Errorf("ERROR: unknown command '%s %s'", program, strings.Join(words, " "))
	}
	c := all[i]
	if words = words[len(strings.Fields(c.words)):]; len(words) != len(c.parameters) {
		return "", fmt.Errorf("400 not enough arguments, or too many\n%s %s", program, c.words)
	}
	path := c.path
	for i, name := range c.parameters {
		if strings.Contains(path, "{"+name+"}") {
			path = strings.Replace(path, "{"+name+"}", url.PathEscape(words[i]), 1)
		} else {
			values.Set(name, words[i])
		}
	}
	if c.fixed != "" {
		values.Set(c.fixed, "1")
	}
	answer, err := request(api, token, c.method, path, values)
	switch {
	case err != nil:
		return "", err
	case form == "json" && string(answer) != "null":
		return string(answer) + "\n", nil
	case form != "json" && c.method == http.MethodPost && strings.Contains(c.path, "{tokenid}"), c.method == http.MethodGet && form != "json":
		return "", fmt.Errorf("%s %s: only --output-format json is simulated", program, c.words)
	}
	return "", nil
}

// request asks the API.
func request(api http.RoundTripper, token, method, path string, values url.Values) (json.RawMessage, error) {
	body, address := strings.NewReader(""), "https://localhost:8006/api2/json"+path
	if method == http.MethodGet || method == http.MethodDelete {
		address += "?" + values.Encode()
	} else {
		body = strings.NewReader(values.Encode())
	}
	r, err := http.NewRequest(method, address, body) //nolint:noctx // it takes no time
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "PVEAPIToken="+token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := api.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	var doc struct {
		Data    json.RawMessage
		Message string
		Errors  map[string]string
	}
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil {
		return nil, fmt.Errorf("%s", res.Status)
	}
	if res.StatusCode == http.StatusOK {
		return doc.Data, nil
	}
	if len(doc.Errors) == 0 {
		return nil, fmt.Errorf("%s", strings.TrimSpace(doc.Message))
	}
	lines := []string{"400 Parameter verification failed."}
	for _, name := range slices.Sorted(maps.Keys(doc.Errors)) {
		lines = append(lines, name+": "+strings.TrimSpace(doc.Errors[name]))
	}
	return nil, errors.New(strings.Join(lines, "\n"))
}
