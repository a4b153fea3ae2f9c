"use strict";

/* The operator API by Swagger UI: the document of this server, checked by nobody else. */
const place = document.getElementById("api");
window.SwaggerUIBundle({
    domNode: place,
    url: place.dataset.document,
    validatorUrl: null,
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: -1,
    tryItOutEnabled: true,
});
