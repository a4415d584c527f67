package pvesim

// areaCerts is the certificates of nodes.
func areaCerts() area {
	return area{
		routes: map[string]handler{
			"GET /nodes/{node}/certificates/info": apiCertificates,
		},
		calls: certificateCalls(),
	}
}
