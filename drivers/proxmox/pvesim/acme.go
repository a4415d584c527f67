package pvesim

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// ACME (PVE/API2/ACMEAccount.pm, ACMEPlugin.pm, ACME.pm): the authority is one that
// grants whatever is asked.

// acmeAccount is what the authority knows of whom it registered.
type acmeAccount struct {
	directory, tos, location, created string
	contact                           []string
}

var acmeDirectories = [][2]string{
	{"Let's Encrypt V2", "https://acme-v02.api.letsencrypt.org/directory"},
	{"Let's Encrypt V2 Staging", "https://acme-staging-v02.api.letsencrypt.org/directory"},
}

const acmeTerms = "https://letsencrypt.org/documents/LE-SA-v1.5-February-24-2025.pdf"

// acmeAPIs are some of the services for DNS challenges (dns-challenge-schema.json).
const acmeAPIs = "acmedns|acmeproxy|active24|ad|ali|arvan|autodns|aws|azure|bunny|cf|clouddns|cloudns|cn|conoha|constellix|cpanel|cx|cyon|da|ddnss|desec|dgon|" +
	"dnsimple|do|doapi|domeneshop|dp|dpi|dreamhost|duckdns|durabledns|dyn|dynu|dynv6|easydns|euserv|exoscale|freedns|gandi_livedns|gcloud|gd|gdnsdk|he|hetzner|" +
	"hexonet|hostingde|huaweicloud|infoblox|infomaniak|internetbs|inwx|ionos|ispconfig|jd|joker|kas|kinghost|knot|leaseweb|lexicon|linode|linode_v4|loopia|lua|" + //nolint:misspell // Its name.
	"maradns|me|misaka|myapi|mydevil|mydnsjp|namecheap|namecom|namesilo|nederhost|neodigit|netcup|netlify|nic|njalla|nm|nsd|nsone|nsupdate|nw|oci|one|online|" +
	"openprovider|openstack|opnsense|ovh|pdns|pleskxml|pointhq|porkbun|rackspace|rcode0|regru|scaleway|schlundtech|selectel|servercow|simply|tele3|transip|udr|" +
	"ultra|unoeuro|variomedia|vscale|vultr|websupport|world4you|yandex|yc|zilore|zone|zonomi"

func acmeFiles() []sectionFile {
	return []sectionFile{{
		name: "priv/acme/plugins", path: "/cluster/acme/plugins", key: "id", id: "pve-configid", plain: true,
		kinds: map[string]string{"dns": "api? data? validation-delay? nodes? disable?", "standalone": "nodes? disable?"},
		props: `api: string ` + acmeAPIs + `
			data: string
			validation-delay: integer 0..172800
			nodes: string pve-node-list
			disable: boolean`,
		read: allOf("/", "Sys.Modify"), write: allOf("/", "Sys.Modify"), lock: "priv_acme_plugins_cfg",
		twice: "ACME plugin ID '%s' already exists", missing: "ACME plugin '%s' not defined", gone: "ACME plugin ID '%s' does not exist", missingIsGone: true,
		show: func(_ *world, _ *call, id string, entry map[string]any) {
			entry["plugin"] = id
			if data, ok := entry["data"].(string); ok {
				plain, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(data), "="))
				if err == nil {
					entry["data"] = string(plain)
				}
			}
		},
	}}
}

func (c *call) acmeName() string {
	if name := c.in["name"]; name != "" {
		return name
	}
	return "default"
}

// accounts are those of all authorities, by name.
type accounts struct{ by map[string]*acmeAccount }

func accountsOf(w *world) map[string]*acmeAccount {
	all := partOf[accounts](&w.parts)
	if all.by == nil {
		all.by = map[string]*acmeAccount{}
	}
	return all.by
}

// beginACME is what there is from the start.
func beginACME(w *world) {
	w.sections["priv/acme/plugins"] = map[string]config{"standalone": {"type": "standalone"}}
}

// acmeAccount finds the account of a call.
func (c *call) acmeAccount() (*acmeAccount, error) {
	name := c.acmeName()
	if account := accountsOf(c.w)[name]; account != nil {
		return account, nil
	}
	return nil, badParam("name", "ACME account config file '"+name+"' does not exist.")
}

// apiAcmeAccounts is GET /cluster/acme/account.
func apiAcmeAccounts(w *world, _ *call) (any, error) {
	return subdirs("name", slices.Sorted(maps.Keys(accountsOf(w)))...), nil
}

// apiAcmeAccount is GET /cluster/acme/account/{name}.
func apiAcmeAccount(_ *world, c *call) (any, error) {
	account, err := c.acmeAccount()
	if err != nil {
		return nil, err
	}
	entry := map[string]any{
		"account":   map[string]any{"contact": account.contact, "createdAt": account.created, "status": "valid"},
		"directory": account.directory, "location": account.location,
	}
	if account.tos != "" {
		entry["tos"] = account.tos
	}
	return entry, nil
}

func (c *call) contacts() []string {
	list := []string{}
	for _, address := range c.list("contact") {
		list = append(list, "mailto:"+address)
	}
	return list
}

// apiAcmeRegister is POST /cluster/acme/account.
func apiAcmeRegister(w *world, c *call) (any, error) {
	name := c.acmeName()
	if accountsOf(w)[name] != nil {
		return nil, badParam("name", "ACME account config file '"+name+"' already exists.")
	}
	account := &acmeAccount{directory: c.in["directory"], tos: c.in["tos_url"], contact: c.contacts()}
	if account.directory == "" {
		account.directory = acmeDirectories[0][1]
	}
	return w.fork(c, w.cfg.Node, job{kind: "acmeregister", end: func(t *task) error {
		if accountsOf(w)[name] != nil {
			return fail("ACME account config file '%s' already exists.", name)
		}
		account.created = w.now.UTC().Format("2006-01-02T15:04:05Z")
		account.location = strings.TrimSuffix(account.directory, "directory") + "acme/acct/" + fmt.Sprint(w.rng.Uint32())
		accountsOf(w)[name] = account
		t.logf("Generating ACME account key..\nRegistering ACME account..\nRegistration successful, account URL: '%s'", account.location)
		return nil
	}}), nil
}

// apiAcmeUpdate is PUT of an account, apiAcmeDeactivate DELETE.
func apiAcmeUpdate(w *world, c *call) (any, error) {
	account, err := c.acmeAccount()
	if err != nil {
		return nil, err
	}
	kind, contact := "acmerefresh", c.contacts()
	if len(contact) > 0 {
		kind = "acmeupdate"
	}
	return w.fork(c, w.cfg.Node, job{kind: kind, end: func(*task) error {
		if len(contact) > 0 {
			account.contact = contact
		}
		return nil
	}}), nil
}

func apiAcmeDeactivate(w *world, c *call) (any, error) {
	if _, err := c.acmeAccount(); err != nil {
		return nil, err
	}
	name := c.acmeName()
	return w.fork(c, w.cfg.Node, job{kind: "acmedeactivate", end: func(t *task) error {
		at := "/etc/pve/priv/acme/"
		t.logf("Renaming account file from '%s%s' to '%s_deactivated_%s_0'", at, name, at, name)
		delete(accountsOf(w), name)
		return nil
	}}), nil
}

// The rest are questions to the authority.

func apiAcmeTerms(*world, *call) (any, error) { return acmeTerms, nil }

func apiAcmeMeta(*world, *call) (any, error) {
	return map[string]any{"termsOfService": acmeTerms, "website": "https://letsencrypt.org", "caaIdentities": []string{"letsencrypt.org"}}, nil
}

func apiAcmeDirectories(*world, *call) (any, error) {
	list := []map[string]any{}
	for _, d := range acmeDirectories {
		list = append(list, map[string]any{"name": d[0], "url": d[1]})
	}
	return list, nil
}

func apiAcmeSchema(*world, *call) (any, error) {
	list := []map[string]any{}
	for api := range strings.SplitSeq(acmeAPIs, "|") {
		list = append(list, map[string]any{"id": api, "name": api, "type": "dns", "schema": map[string]any{}})
	}
	return list, nil
}

func acmeCalls() []pastCall {
	word, list, object := &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}, &pveapi.Value{Type: "object"}
	const name, contact = "name: string pve-configid\n", "contact: string email-list"
	const directory = "directory: string /^https?://.*/"
	const at = "/nodes/{node}/certificates/acme"
	modify := allOf("/nodes/{node}", "Sys.Modify")
	return []pastCall{
		{name: "GET /cluster/acme/account", returns: list, handle: apiAcmeAccounts},
		{
			name: "POST /cluster/acme/account", root: true, returns: word, handle: apiAcmeRegister,
			params: name + contact + " needed\ntos_url: string\neab-kid: string\neab-hmac-key: string\n" + directory,
		},
		{name: "GET /cluster/acme/account/{name}", root: true, params: name, returns: object, handle: apiAcmeAccount},
		{name: "PUT /cluster/acme/account/{name}", root: true, params: name + contact, returns: word, handle: apiAcmeUpdate},
		{name: "DELETE /cluster/acme/account/{name}", root: true, params: name, returns: word, handle: apiAcmeDeactivate},
		{name: "GET /cluster/acme/tos", params: directory, returns: word, handle: apiAcmeTerms},
		{name: "GET /cluster/acme/meta", params: directory, returns: object, since: "9.0", handle: apiAcmeMeta},
		{name: "GET /cluster/acme/directories", returns: list, handle: apiAcmeDirectories},
		{name: "GET /cluster/acme/challenge-schema", returns: list, handle: apiAcmeSchema},
		{name: "GET " + at, returns: list, handle: index{"name", "certificate"}.handler},
		{name: "POST " + at + "/certificate", perm: modify, params: "force: boolean", returns: word, handle: apiAcmeCertificate},
		{name: "PUT " + at + "/certificate", perm: modify, params: "force: boolean", returns: word, handle: apiAcmeCertificate},
		{name: "DELETE " + at + "/certificate", perm: modify, returns: word, handle: apiAcmeCertificate},
	}
}

// acmeDomains are the domains of the configuration of a node (get_acme_conf in
// PVE/NodeConfig.pm).
func acmeDomains(conf config) []string {
	domains := strings.FieldsFunc(optionOf(conf["acme"], "domains"), func(r rune) bool { return r == ';' })
	for _, key := range indexedKeys(conf, "acmedomain") {
		domain, _, _ := strings.Cut(conf[key], ",")
		domains = append(domains, strings.TrimPrefix(domain, "domain="))
	}
	return domains
}

// apiAcmeCertificate is POST, PUT and DELETE /nodes/{node}/certificates/acme/certificate.
func apiAcmeCertificate(w *world, c *call) (any, error) {
	s, conf := c.custom(), c.node().conf
	order := c.req.method == "POST"
	switch soon := s.cert != nil && s.cert.NotAfter.Before(w.now.Add(30*24*time.Hour)); {
	case order && s.cert != nil && !c.flag("force"):
		return nil, badParam("force", "Custom certificate exists but 'force' is not set.")
	case c.req.method == "PUT" && s.cert == nil:
		return nil, fail("No current (custom) certificate found, please order a new certificate!")
	case c.req.method == "PUT" && !soon && !c.flag("force"):
		return nil, badParam("force", "Certificate does not expire within the next 30 days, and 'force' is not set.")
	}
	domains := acmeDomains(conf)
	if len(domains) == 0 {
		return nil, badRequest("ACME domain list in node configuration is missing!")
	}
	account := optionOf(conf["acme"], "account")
	if account == "" {
		account = "default"
	}
	kind := map[string]string{"POST": "acmenewcert", "PUT": "acmerenew", "DELETE": "acmerevoke"}[c.req.method]
	return w.fork(c, c.in["node"], job{kind: kind, end: func(t *task) error {
		if accountsOf(w)[account] == nil {
			return fail("ACME account config file '%s' does not exist.", account)
		}
		t.logf("Loading ACME account details")
		if kind == "acmerevoke" {
			t.logf("Revoking old certificate\nDeleting certificate files\nRestarting pveproxy to revert to self-signed certificates")
			s.cert = nil
			return nil
		}
		t.logf("Placing ACME order\nAll domains validated!\n\nCreating CSR\nChecking order status\nDownloading certificate\nSetting pveproxy certificate and key\nRestarting pveproxy")
		s.cert = newCertificate(domains[0], w.now).parsed
		return nil
	}}), nil
}
